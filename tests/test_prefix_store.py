"""A prefix store gives what was computed before to those who begin with the same tokens, and to nobody else; the logits are those of a run without one."""

import sys
import threading
import time
import warnings

import numpy as np
import pairs
import pytest
import torch
from architectures import model_of, token_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversation import CACHES, SMALL, count_fed, say, stopped_at
from test_operations import CASES, CLOSE
from tiny_chat import make_model, reader, tiny

import kvcache
from kvcache.chat import prefixes, scheduler
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Sampling, Token
from kvcache.memory import storages_of
from kvcache.trie import Trie

PLENTY = 2**30


def filled(name="dynamic", tokens=40, model=None, seed=0, store=None, **parameters):
    """(ids [1, tokens], a cache that has seen them)."""
    model = model or model_of("llama")
    cache, ids = kvcache.create(name, model, **parameters), token_ids(1, tokens, seed)
    with torch.no_grad():
        kvcache.feed(model, ids, cache)
    return ids, cache


def put(store, name="dynamic", tokens=40, seed=0, **parameters):
    ids, cache = filled(name, tokens, store.model, seed, **parameters)
    store.put(ids, cache)
    return ids


def on(ids, more=4, seed=99):
    """Ids that go on behind these."""
    return torch.cat([ids, token_ids(1, more, seed)], dim=1)


def nbytes_of(tokens, **parameters):
    """What one entry takes: its storage, and its ids twice."""
    return sum(storages_of(filled(tokens=tokens, **parameters)[1]).values()) + 2 * 4 * tokens


# ------------------------------------------------------------------------------------------------------- right logits


@pytest.mark.parametrize("narrow", [False, True], ids=["nothing lost", "narrow"])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_going_on_from_a_match_gives_the_logits_of_a_run_without_a_store(name, narrow, data):
    case = CASES[name]
    if narrow and not case.loses:
        return
    first = data.draw(st.integers(2, 70), "tokens put")
    shared = data.draw(st.integers(1, first), "tokens shared")
    cuts = sorted({0, first, *data.draw(st.lists(st.integers(1, first - 1), max_size=2), "cuts")})
    mine = token_ids(1, first, data.draw(st.integers(0, 5)))
    theirs = torch.cat([mine[:, :shared], token_ids(1, 12, 77)], dim=1)
    if shared < first:
        theirs[0, shared] = (mine[0, shared] + 1) % 97
    source = pairs.sources(mine)[0].tolist() if case.model.config.is_encoder_decoder else []
    bounds, rest = list(zip(cuts, cuts[1:])), (lambda length: [(length, length + 1), (length + 1, theirs.shape[1])])
    parameters = case.narrow if narrow else case.wide

    store = kvcache.PrefixStore(case.model, PLENTY)
    cache = case.cache(narrow)
    case.feed(cache, mine, bounds)
    store.put(mine, cache, source_ids=source)
    case.feed(cache, theirs, [(0, 3)] if case.model.config.is_encoder_decoder else [(0, 1)])  # what its owner does next changes nothing
    found, length = store.match(theirs, case.name, source_ids=source, **parameters)

    expected = case.cache(narrow)
    case.feed(expected, mine, bounds)
    floor = max(expected.crop_floor, 1)
    assert length == (first if shared == first else shared if floor <= shared else 0)
    if 0 < length < first:
        expected.crop(length)
    elif not length:
        expected = case.cache(narrow)
    ours = case.feed(found, theirs, rest(length))
    torch.testing.assert_close(ours, case.feed(expected, theirs, rest(length)), **CLOSE)
    if not narrow and not case.rounds:
        torch.testing.assert_close(ours, case.exact(theirs)[:, length:], **CLOSE)


def test_the_longest_prefix_is_found_and_one_token_is_left_to_feed():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY)
    short, long = token_ids(1, 20), token_ids(1, 60)
    long[:, :15] = short[:, :15]
    for ids in (short, long):
        _, cache = filled()
        cache.reset()
        with torch.no_grad():
            kvcache.feed(store.model, ids, cache)
        store.put(ids, cache)
    found = {n: store.match(long[:, :n], "dynamic")[1] for n in (1, 2, 16, 17, 60)}
    assert found == {1: 0, 2: 1, 16: 15, 17: 16, 60: 59}
    assert store.longest(on(short)[0].tolist(), "dynamic") == 20
    assert store.longest(on(long), "dynamic") == 60


def test_what_cannot_be_cropped_is_found_at_its_end_alone():
    store = kvcache.PrefixStore(model_of("mamba"), PLENTY)
    ids = put(store, "mamba", tokens=30)
    assert store.match(on(ids), "mamba")[1] == 30
    assert store.match(ids, "mamba")[1] == 0
    assert store.match(on(ids[:, :20]), "mamba")[1] == 0
    put(store, "mamba", tokens=20, seed=1)  # a checkpoint of other ids
    with torch.no_grad():
        kvcache.feed(store.model, ids[:, :20], cache := kvcache.create("mamba", store.model))
    store.put(ids[:, :20], cache)
    assert store.match(on(ids[:, :20]), "mamba")[1] == 20
    assert len(store) == 3


def test_with_granularity_caches_are_cut_to_multiples_alone_and_given_whole_at_their_ends():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY, granularity=16)
    ids = put(store, tokens=40)
    assert [store.longest(on(ids[:, :n]), "dynamic") for n in (15, 16, 31, 39, 40)] == [0, 16, 16, 32, 40]


def test_a_longer_cache_takes_the_place_of_those_that_it_serves_as_well():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY)
    ids, cache = filled(tokens=30)
    store.put(ids, cache)
    with torch.no_grad():
        kvcache.feed(store.model, token_ids(1, 10, 5), cache)
    longer = torch.cat([ids, token_ids(1, 10, 5)], dim=1)
    store.put(longer, cache)
    assert (len(store), store.longest(on(ids), "dynamic"), store.longest(on(longer), "dynamic")) == (1, 30, 40)
    store.put(ids, filled(tokens=30)[1])
    assert len(store) == 1


# ----------------------------------------------------------------------------------------- never a prefix of another


def test_no_prefix_of_another_cache_other_parameters_or_another_text_of_the_encoders():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY)
    ids = put(store, "quantized", nbits=4)
    assert store.match(on(ids), "quantized", nbits=4)[1] == 40
    assert store.match(on(ids), "quantized", nbits=2)[1] == 0
    assert store.match(on(ids), "dynamic")[1] == 0
    reader, case = kvcache.PrefixStore(pairs.model_of("t5"), PLENTY), CASES["encoder_decoder"]
    mine = token_ids(1, 20)
    case.feed(cache := case.cache(), mine, [(0, 20)])
    source = pairs.sources(mine)[0].tolist()
    reader.put(mine, cache, source_ids=source)
    assert reader.match(on(mine), "encoder_decoder", source_ids=source)[1] == 20
    assert reader.match(on(mine), "encoder_decoder", source_ids=[*source[:-1], 5])[1] == 0
    with pytest.raises(ValueError, match="source_ids are those that the encoder has read: got 0, and the cache holds 15"):
        reader.put(mine, cache)


def test_a_cache_of_another_model_or_of_other_ids_is_refused():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY)
    ids, cache = filled()
    with pytest.raises(ValueError, match="made for another model"):
        kvcache.PrefixStore(model_of("qwen2"), PLENTY).put(ids, cache)
    with pytest.raises(ValueError, match="caches that kvcache.create made for its model"):
        store.put(ids, kvcache.DynamicCache(config=store.model.config))
    with pytest.raises(ValueError, match="got 39, and it has seen 40"):
        store.put(ids[:, 1:], cache)
    with pytest.raises(ValueError, match="ids are one row"):
        store.match(ids.expand(2, -1), "dynamic")
    with pytest.raises(ValueError, match="ids are one row"):
        store.match([0.5], "dynamic")
    cache.batch_repeat_interleave(2)
    with pytest.raises(ValueError, match="caches of one row, got 2"):
        store.put(ids, cache)
    with pytest.raises(ValueError, match="no cache is called 'dynamite'"):
        store.match(ids, "dynamite")
    with pytest.raises(TypeError, match="for one model, got str"):
        kvcache.PrefixStore("llama", PLENTY)
    with pytest.raises(ValueError, match="max_nbytes"):
        kvcache.PrefixStore(store.model, -1)
    assert len(store) == 0


@pytest.mark.parametrize("change", ["written", "cast"])
def test_after_a_change_of_the_weights_nothing_from_before_is_given(change, tmp_path):
    model = model_of.__wrapped__("llama")
    store = kvcache.PrefixStore(model, PLENTY, tmp_path)
    ids = put(store)
    store.flush()
    assert store.longest(on(ids), "dynamic") == 40
    with torch.no_grad():
        if change == "written":
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.1)
        else:
            model.to(torch.bfloat16)
    assert store.longest(on(ids), "dynamic") == store.match(on(ids), "dynamic")[1] == 0
    put(store)
    assert store.longest(on(ids), "dynamic") == 40


# --------------------------------------------------------------------------------------------------- memory and order


def test_the_least_recently_used_goes_first():
    one = nbytes_of(40)
    store = kvcache.PrefixStore(model_of("llama"), 3 * one)
    texts = [put(store, seed=seed) for seed in range(3)]
    assert store.nbytes == 3 * one
    store.match(on(texts[0]), "dynamic")
    texts.append(put(store, seed=3))
    assert [store.longest(on(ids), "dynamic") for ids in texts] == [40, 0, 40, 40]
    assert store.nbytes <= store.max_nbytes


def test_storage_that_forks_share_is_counted_once_and_not_let_go_of_while_it_costs_nothing():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY, granularity=16)
    ids, cache = filled(tokens=33)
    store.put(ids, cache)
    alone = store.nbytes
    with torch.no_grad():
        kvcache.feed(store.model, token_ids(1, 2, 8), cache)  # into the room that is reserved behind what the store reads
    longer = torch.cat([ids, token_ids(1, 2, 8)], dim=1)
    store.put(longer, cache)
    assert len(store) == 2  # 33 is no multiple of 16
    assert store.nbytes == alone + 2 * 4 * 35
    store.max_nbytes = store.nbytes
    store.put(*filled(tokens=5, seed=3))  # one too many: the oldest would free nothing, so that both that share go or none
    assert (store.longest(on(ids), "dynamic"), store.longest(on(longer), "dynamic")) in ((33, 35), (0, 0))
    assert store.nbytes <= store.max_nbytes


def test_the_oldest_stays_where_a_newer_one_keeps_its_storage_alive():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY, granularity=16)
    ids, cache = filled(tokens=33)
    store.put(ids, cache)
    other = put(store, tokens=33, seed=4)
    with torch.no_grad():
        kvcache.feed(store.model, token_ids(1, 2, 8), cache)
    longer = torch.cat([ids, token_ids(1, 2, 8)], dim=1)
    store.put(longer, cache)
    store.max_nbytes = store.nbytes + 2 * 4 * 20
    newest = put(store, tokens=20, seed=5)
    assert [store.longest(on(each), "dynamic") for each in (ids, longer, other, newest)] == [33, 35, 0, 20]


def test_what_takes_more_than_there_is_is_not_kept_and_moves_nobody_out():
    store = kvcache.PrefixStore(model_of("llama"), nbytes_of(40))
    ids = put(store)
    big = put(store, tokens=200, seed=1)
    assert (store.longest(on(ids), "dynamic"), store.longest(on(big), "dynamic")) == (40, 0)


def test_what_is_let_go_of_is_freed():
    store = kvcache.PrefixStore(model_of("llama"), PLENTY)
    put(store)
    kept = store._kept[0].cache
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)
    assert sys.getrefcount(kept) == 2


# -------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["dynamic", "quantized", "sink", "mamba", "encoder_decoder"])
def test_what_is_squeezed_out_goes_to_the_folder_and_survives_a_restart(name, tmp_path):
    case = CASES[name]
    mine, other = token_ids(1, 50), token_ids(1, 50, 1)
    sources = [pairs.sources(ids)[0].tolist() if case.model.config.is_encoder_decoder else [] for ids in (mine, other)]
    store = kvcache.PrefixStore(case.model, PLENTY, tmp_path)
    case.feed(cache := case.cache(), mine, [(0, 50)])
    store.put(mine, cache, source_ids=sources[0])
    store.max_nbytes = store.nbytes
    case.feed(cache := case.cache(), other, [(0, 50)])
    store.put(other, cache, source_ids=sources[1])
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]
    theirs = on(mine)
    expected = case.feed(case.cache(), theirs, [(0, 50), (50, 54)])[:, 50:]
    for again in (store, kvcache.PrefixStore(case.model, PLENTY, tmp_path)):
        found, length = again.match(theirs, case.name, source_ids=sources[0], **case.wide)
        assert length == 50
        torch.testing.assert_close(case.feed(found, theirs, [(50, 54)]), expected, **CLOSE)
    assert store.longest(on(other), case.name, source_ids=sources[1], **case.wide) == 50  # moved out for the first, and found there


def test_a_flushed_store_is_found_again_and_one_of_another_model_is_left_alone(tmp_path):
    store = kvcache.PrefixStore(model_of("llama"), PLENTY, tmp_path)
    ids = put(store)
    store.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = kvcache.PrefixStore(model_of("qwen2"), PLENTY, tmp_path)
        again = kvcache.PrefixStore(model_of("llama"), PLENTY, tmp_path)
    assert (other.longest(on(ids), "dynamic"), again.longest(on(ids), "dynamic")) == (0, 40)
    assert again.match(on(ids[:, :25]), "dynamic")[1] == 25


def test_damaged_files_are_left_out_with_a_sentence(tmp_path):
    store = kvcache.PrefixStore(model_of("llama"), PLENTY, tmp_path)
    ids = put(store)
    other = put(store, seed=1)
    store.flush()
    (tmp_path / "short.safetensors").write_bytes(b"\x00" * 5)
    (tmp_path / "notes.txt").write_text("not a cache")
    torch.save({"a": 1}, tmp_path / "pickle.safetensors")
    with pytest.warns(UserWarning, match="(short|pickle).safetensors is left out of the prefix store") as warned:
        again = kvcache.PrefixStore(store.model, PLENTY, tmp_path)
    assert len(warned) == 2 and len(again) == 2
    for path in tmp_path.glob("????????????????????????????????????????.safetensors"):
        data = path.read_bytes()
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with pytest.warns(UserWarning, match="left out of the prefix store: .* was changed after it was written"):
        assert again.match(on(ids), "dynamic")[1] == 0
    next(tmp_path.glob("????????????????????????????????????????.safetensors")).unlink()
    with pytest.warns(UserWarning, match="left out of the prefix store"):
        assert again.match(on(other), "dynamic")[1] == 0
    assert len(again) == 0


def test_a_full_disk_leaves_the_store_as_it_was_and_says_so(tmp_path, monkeypatch):
    store = kvcache.PrefixStore(model_of("llama"), nbytes_of(40), tmp_path)
    ids, before = put(store), store.nbytes
    monkeypatch.setattr("kvcache.saving.save_file", lambda *arguments, **named: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="cannot be written into .*No space left on device.*the store is as it was"):
        put(store, seed=1)
    assert (len(store), store.nbytes, store.longest(on(ids), "dynamic"), list(tmp_path.iterdir())) == (1, before, 40, [])
    with pytest.raises(OSError, match="the store is as it was"):
        store.flush()
    monkeypatch.undo()
    assert store.longest(on(put(store, seed=1)), "dynamic") == store.longest(on(ids), "dynamic") == 40


def test_a_file_that_the_system_refuses_to_write_is_an_oserror_too(tmp_path):
    """A real refusal, here by a limit on the size of files, comes out of safetensors as an error of its own."""
    resource = pytest.importorskip("resource")
    store = kvcache.PrefixStore(model_of("llama"), nbytes_of(40), tmp_path)
    ids, (others, cache) = put(store), filled(seed=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="the store is as it was"):
            store.put(others, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.longest(on(ids), "dynamic") == 40
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_reading_drops_what_would_have_been_written(tmp_path, monkeypatch):
    store = kvcache.PrefixStore(model_of("llama"), nbytes_of(40), tmp_path)
    first, second = put(store), put(store, seed=1)
    monkeypatch.setattr("kvcache.saving.save_file", lambda *arguments, **named: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.warns(UserWarning, match="No space left on device.*it is let go of"):
        assert store.match(on(first), "dynamic")[1] == 40
    assert (store.longest(on(first), "dynamic"), store.longest(on(second), "dynamic")) == (40, 0)


def test_the_folder_keeps_no_more_than_it_may(tmp_path):
    probe = kvcache.PrefixStore(model_of("llama"), PLENTY, tmp_path / "probe")
    put(probe)
    probe.flush()
    size = next((tmp_path / "probe").iterdir()).stat().st_size
    store = kvcache.PrefixStore(model_of("llama"), nbytes_of(40), tmp_path / "it", max_folder_nbytes=2 * size + 100)
    texts = []
    for seed in range(5):
        texts.append(put(store, seed=seed))
        time.sleep(0.01)
    assert [store.longest(on(ids), "dynamic") for ids in texts] == [0, 0, 40, 40, 40]
    assert len(list((tmp_path / "it").iterdir())) == 2


def test_a_cache_read_from_a_file_that_is_larger_than_the_store_is_given_all_the_same(tmp_path):
    store = kvcache.PrefixStore(model_of("llama"), PLENTY, tmp_path)
    ids = put(store)
    store.flush()
    small = kvcache.PrefixStore(model_of("llama"), 100, tmp_path, max_folder_nbytes=PLENTY)
    assert [small.match(on(ids), "dynamic")[1] for _ in range(2)] == [40, 40]
    assert small.nbytes == 0


# ------------------------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("with_folder", [False, True])
def test_threads_that_put_and_match_get_right_prefixes(with_folder, tmp_path):
    model = model_of("llama")
    store = kvcache.PrefixStore(model, 4 * nbytes_of(40), tmp_path if with_folder else None)
    made = [filled(tokens=40, seed=seed) for seed in range(8)]
    keys = [cache.layers[0].keys.clone() for _, cache in made]
    errors = []

    def work(mine):
        try:
            order = np.random.default_rng(mine)
            for _ in range(30):
                n = int(order.integers(8))
                ids = made[n][0]
                found, length = store.match(on(ids), "dynamic")
                if length:
                    assert torch.equal(found.layers[0].keys, keys[n][:, :, :length])
                    with torch.no_grad():
                        kvcache.feed(model, token_ids(1, 3, mine), found)  # its own copy from here
                else:
                    store.put(ids, made[n][1].fork() if mine % 2 else filled(tokens=40, seed=n)[1])
        except BaseException as error:  # told to the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert store.nbytes <= store.max_nbytes


# --------------------------------------------------------------------------------------------------------------- tree


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12), st.lists(st.integers(0, 2), max_size=9), st.data())
def test_the_tree_says_what_comparing_with_each_says(texts, asked, data):
    tree = Trie()
    for number, text in enumerate(texts):
        tree.insert(np.array(text, np.int32), number)
    gone = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    for number in gone:
        tree.remove(np.array(texts[number], np.int32), number)

    def common(text):
        return next((n for n, (a, b) in enumerate(zip(text, asked)) if a != b), min(len(text), len(asked)))

    expected = sorted(((common(text), number) for number, text in enumerate(texts) if number not in gone and common(text)), reverse=True)
    found = list(tree.shared(np.array(asked, np.int32)))
    assert [length for length, _ in found] == [length for length, _ in expected]
    assert sorted(found, reverse=True) == expected
    if len(gone) == len(texts):
        assert not tree.children


# -- conversations on a store --------------------------------------------------------------------------------------

TEXT = "The keeper counts the ships and remembers the code. " * 60  # some 700 tokens
GREEDY = Sampling(max_new_tokens=8)
CHUNK = prefixes.PREFILL_CHUNK
SMALLER = {**SMALL, "static": dict(max_cache_len=2048), "offloaded_static": dict(max_cache_len=2048), "hybrid": dict(max_cache_len=2048)}


@pytest.fixture
def store_of():
    """A store for each model of one test, as the playground has one for each."""
    stores = {}
    return lambda loaded: stores.setdefault(loaded.id, kvcache.PrefixStore(loaded.model, 2**28, granularity=CHUNK, exact=True))


def chat(loaded, name="dynamic", prefixes=lambda loaded: None, **options):
    return Conversation(loaded, name, SMALLER.get(name, {}), sampling=GREEDY, prefixes=prefixes, **options)


@pytest.mark.parametrize("generate", [None, scheduler.generate_tokens], ids=["alone", "scheduled"])
@pytest.mark.parametrize("name", CACHES)
def test_a_second_person_with_the_same_text_gets_the_same_reply_for_fewer_tokens(name, generate, store_of):
    loaded, options = tiny("llama"), {"generate": generate} if generate else {}
    first = say(chat(loaded, name, store_of, **options), TEXT + "Who counts?")
    assert (first.stats.reused, first.stats.kept) == (0, 0)
    alone, together = chat(loaded, name), chat(loaded, name, store_of, **options)
    expected, done = say(alone, TEXT + "What is remembered?"), say(together, TEXT + "What is remembered?")
    assert together.ids == alone.ids
    assert done.stats.kept == done.stats.reused >= 2 * CHUNK and done.stats.reused % CHUNK == 0
    assert done.stats.reused + done.stats.computed == expected.stats.computed
    assert together.cached_ids == together.ids[:-1]
    again, told = say(together, "And then?"), say(alone, "And then?")
    assert (together.ids, again.stats.kept, again.stats.reused) == (alone.ids, 0, told.stats.reused)


@pytest.mark.parametrize("kind", ["mistral", "gemma3", "mamba"])
def test_models_with_windows_and_states_too(kind, store_of):
    loaded = tiny(kind)
    name = "mamba" if kind == "mamba" else "dynamic"
    say(chat(loaded, name, store_of), TEXT + "Who counts?")
    alone, together = chat(loaded, name), chat(loaded, name, store_of)
    say(alone, TEXT + "What is remembered?")
    done = say(together, TEXT + "What is remembered?")
    assert together.ids == alone.ids
    assert done.stats.kept >= (2 * CHUNK if loaded.continues_in_chunks else 0)


def test_a_long_system_prompt_is_found_again(store_of):
    loaded = tiny()
    say(chat(loaded, prefixes=store_of, system=TEXT), "Hi")
    done = say(chat(loaded, prefixes=store_of, system=TEXT), "What is your name?")
    assert done.stats.kept >= 2 * CHUNK


def test_a_whole_conversation_goes_on_elsewhere_from_its_end(store_of):
    """The same messages on another conversation with the same ids: a column beside, or a conversation whose cache was freed."""
    loaded = tiny()
    talk = chat(loaded, prefixes=store_of)
    say(talk, TEXT)
    other = talk.with_cache("dynamic")
    assert say(other, "And then?").stats.kept == len(talk.cached_ids)
    talk.release()
    done = say(talk, "And then?")
    assert done.stats.kept == len(other._turns[0].prompt_ids) + 7
    assert done.stats.note.startswith("recomputed ") and "more of" in done.stats.note
    assert talk.ids == other.ids


def test_nothing_short_is_kept_or_found_and_nothing_without_a_store(store_of):
    loaded = tiny()
    say(chat(loaded, prefixes=store_of), "Hello there")
    assert len(store_of(loaded)) == 0
    say(chat(loaded), TEXT)
    assert len(store_of(loaded)) == 0
    say(chat(loaded, prefixes=store_of), TEXT)
    assert say(chat(loaded, prefixes=store_of), TEXT[: CHUNK // 2]).stats.kept == 0
    assert say(chat(loaded, "quantized", store_of), TEXT).stats.kept == 0
    assert say(chat(loaded, prefixes=store_of), "x" + TEXT).stats.kept == 0


def test_an_encoders_text_must_be_the_same(store_of):
    loaded = reader()
    name = "encoder_decoder"
    said = TEXT
    texts = ("The fox met a crow. " * 3, "The crow met a fox. " * 3)
    first = chat(loaded, name, store_of, system=texts[0])
    say(first, said)
    alone, other = chat(loaded, name, system=texts[1]), chat(loaded, name, store_of, system=texts[1])
    say(alone, said)
    assert (say(other, said).stats.kept, other.ids) == (0, alone.ids)
    same = chat(loaded, name, store_of, system=texts[0])
    assert say(same, said).stats.kept >= CHUNK and same.ids == first.ids


@pytest.mark.parametrize("name", ["dynamic", "quantized", "sink", "static"])
def test_what_the_first_does_next_changes_nothing_for_the_second(name, store_of):
    loaded = tiny()
    first = chat(loaded, name, store_of)
    say(first, TEXT + "Who counts?")
    second, alone = chat(loaded, name, store_of), chat(loaded, name)
    events = second.send(TEXT + "What is remembered?")
    next(events)  # it has begun from the store's
    say(first, "Tell me more. " * 20)
    first.undo()
    first.clear()
    list(events)
    say(alone, TEXT + "What is remembered?")
    assert second.ids == alone.ids


def test_a_reply_that_broke_off_or_failed_leaves_only_what_is_right(store_of):
    loaded = make_model()
    talk = chat(loaded, "quantized", store_of)
    stopped_at(talk, TEXT + "Who?", chunk_tokens=2 * CHUNK)
    assert talk.messages == []
    events = talk.send(TEXT + "Who?")
    for event in events:
        if isinstance(event, Token) and event.index == 3:
            break
    events.close()
    fed = count_fed(loaded)

    def fail(module, inputs, output):
        if len(fed) > 1:
            raise RuntimeError("the forward failed")

    hook = loaded.model.register_forward_hook(fail)
    broken = chat(loaded, "quantized", store_of)
    with pytest.raises(RuntimeError, match="the forward failed"):
        list(broken.send(TEXT + "What? " * 300))
    hook.remove()
    assert broken.messages == [] and broken.cached_ids == []
    for question in ("Who?", "What?"):
        alone, together = chat(loaded, "quantized"), chat(loaded, "quantized", store_of)
        say(alone, TEXT + question)
        assert say(together, TEXT + question).stats.kept >= 2 * CHUNK
        assert together.ids == alone.ids


def test_a_folder_that_is_full_loses_a_prefix_and_no_reply(tmp_path, monkeypatch, caplog):
    loaded = make_model()
    store = kvcache.PrefixStore(loaded.model, 1000, tmp_path, granularity=CHUNK, exact=True)
    monkeypatch.setattr("kvcache.saving.save_file", lambda *arguments, **named: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert say(chat(loaded, prefixes=lambda loaded: store), TEXT).reason == "length"
    assert "a prefix is not kept" in caplog.text and "keeper" not in caplog.text
    assert len(store) == 0


def test_threads_that_share_a_store_say_what_each_says_alone(store_of):
    loaded, texts = tiny(), [TEXT + question for question in ("Who?", "What?", "Why?", "Where?")]
    expected = []
    for text in texts:
        say(alone := chat(loaded, "sink"), text)
        expected.append(alone.ids)
    found = {}

    def work(n):
        for round in range(2):
            talk = chat(loaded, "sink", store_of, generate=scheduler.generate_tokens)
            say(talk, texts[n])
            found[n, round] = talk.ids

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(n, round): expected[n] for n in range(4) for round in range(2)}


def test_the_settings_of_the_environment(monkeypatch, tmp_path):
    loaded = make_model()
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "0")
    assert prefixes.store_of(loaded) is None
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "a lot")
    with pytest.raises(ValueError, match="KVCACHE_PREFIX_BYTES must be a whole number of bytes, 0 to keep no prefixes, got 'a lot'"):
        prefixes.store_of(loaded)
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "123456789")
    monkeypatch.setenv("KVCACHE_PREFIX_FOLDER", str(tmp_path / "kept"))
    store = prefixes.store_of(loaded)
    assert store.max_nbytes == 123456789 and store is prefixes.store_of(loaded)
    say(chat(loaded, prefixes=prefixes.store_of), TEXT)
    assert prefixes.nbytes() >= store.nbytes > 0
    prefixes.flush()
    again = make_model()  # a server started again
    assert say(chat(again, prefixes=prefixes.store_of), TEXT + "Who?").stats.kept >= 2 * CHUNK
