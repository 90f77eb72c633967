"""Work that several threads share: all of it is done, once, and errors come out."""

import sys
import threading

import pytest
import torch

from kvcache.kernels import threads


@pytest.fixture(params=["torch's threads", "our own"])
def three_threads(request, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    if request.param == "our own":
        monkeypatch.setattr(threads, "_team", lambda: None)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_every_piece_is_done_once_and_in_order(three_threads, count):
    found = threads.shared(lambda add, first, last: [add + i for i in range(first, last)], (10,), count, 3)
    assert [number for share in found for number in share] == list(range(10, 10 + count))


@pytest.mark.parametrize("heads,count,spans", [(8, 1, 1), (8, 2, 1), (3, 2, 4), (1, 2, 4), (2, 2, 2), (4, 16, 8), (6, 4, 4), (64, 16, 1)])
def test_heads_are_cut_into_spans_that_threads_share_evenly(heads, count, spans, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    for batch in (1, 5):
        assert threads.shares(batch, heads, 1 << 30, most=1000) == (spans, count) and spans * heads % count == 0
        assert threads.shares(batch, heads, threads.EACH, most=1000) == (1, min(batch, count)), "too little work for more"
    assert threads.shares(1, heads, 1 << 30, most=1) == (1, count)


def test_several_threads_are_at_work_at_once(three_threads):
    """A piece waits until another has begun, which one thread alone would never do."""
    together = threading.Barrier(2)
    assert len(threads.shared(lambda first, last: together.wait(timeout=20), (), 2, 3)) == 2


def test_one_thread_does_it_all_here_unless_told_otherwise(three_threads):
    assert threads.shared(lambda first, last: (threading.get_ident(), first, last), (), 9, 1) == [(threading.get_ident(), 0, 9)]


def test_an_error_in_any_share_comes_out(three_threads):
    def fails_late(first, last):
        if last == 64:
            raise ZeroDivisionError("late")

    with pytest.raises(ZeroDivisionError, match="late"):
        threads.shared(fails_late, (), 64, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may run on an OpenMP library without GOMP_parallel")
def test_torch_lends_its_threads_on_linux():
    assert threads._team() is not None
