"""Work that several threads share: all of it is done, once, and errors come out."""

import sys
import threading

import pytest
import torch

from kvcache import compiled


@pytest.fixture(params=["torch's threads", "our own"])
def three_threads(request, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    if request.param == "our own":
        monkeypatch.setattr(compiled, "_team", lambda: None)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_every_piece_is_done_once_and_in_order(three_threads, count):
    found = compiled.shared(lambda add, first, last: [add + i for i in range(first, last)], (10,), count, threaded=True)
    assert [number for share in found for number in share] == list(range(10, 10 + count))


def test_several_threads_are_at_work_at_once(three_threads):
    """A piece waits until another has begun, which one thread alone would never do."""
    together = threading.Barrier(2)
    assert len(compiled.shared(lambda first, last: together.wait(timeout=20), (), 2, threaded=True)) == 2


def test_one_thread_does_it_all_here_unless_told_otherwise(three_threads):
    assert compiled.shared(lambda first, last: (threading.get_ident(), first, last), (), 9, threaded=False) == [(threading.get_ident(), 0, 9)]


def test_an_error_in_any_share_comes_out(three_threads):
    def fails_late(first, last):
        if last == 64:
            raise ZeroDivisionError("late")

    with pytest.raises(ZeroDivisionError, match="late"):
        compiled.shared(fails_late, (), 64, threaded=True)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may run on an OpenMP library without GOMP_parallel")
def test_torch_lends_its_threads_on_linux():
    assert compiled._team() is not None
