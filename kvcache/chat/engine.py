"""The one token loop: prefill in chunks, then token by token, on any cache, with sampling and stop.

`generate_tokens` is what chat, compare and the benchmarks all run on. Greedy output equals
`model.generate(..., cache=cache, prefill_chunk_size=...)` on the same cache.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.modeling_outputs import BaseModelOutput

from .. import catalog
from ..architecture import decoder_config, tokens_at_once
from ..batch import Batch
from ..batch import decode as decode_batch
from ..feed import feed
from ..memory import Snapshot, heard_by, seen_by, take_snapshot
from ..validation import whole_number
from . import compile_thread
from .models import LoadedModel

PREFILL_CHUNK = 256  # tokens per forward while reading a prompt; stop is looked at between two of them
LEAST_TEMPERATURE = 1e-6  # below, it is 0


# ---------------------------------------------------------------------------------------------------------- sampling


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked. temperature 0 is greedy: then top_p, top_k, min_p and seed have no effect.

    top_k 0, top_p 1 and min_p 0 switch those filters off. `max_new_tokens` counts the end-of-text token too.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    max_new_tokens: int = 256

    def check(self) -> Sampling:
        """The same with every value in its own type. Raises ValueError naming the value and what would work."""
        return Sampling(
            temperature=_drawn(_number("temperature", self.temperature, 0.0, 100.0)),
            top_p=_number("top_p", self.top_p, 0.0, 1.0, above=True),
            top_k=whole_number("top_k", self.top_k, 0, 1_000_000, typed=True),
            min_p=_number("min_p", self.min_p, 0.0, 1.0),
            repetition_penalty=_number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True),
            seed=whole_number("seed", self.seed, 0, 2**63 - 1, typed=True),
            max_new_tokens=whole_number("max_new_tokens", self.max_new_tokens, 1, 1_000_000, typed=True),
        )


def _drawn(temperature: float) -> float:
    """0 for one so low that logits divided by it are infinite: it would pick the likeliest token anyway."""
    return temperature if temperature >= LEAST_TEMPERATURE else 0.0


def _number(name: str, value: Any, low: float, high: float, above: bool = False) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (low < number if above else low <= number) or not number <= high:
        start = "above" if above else "from"
        raise ValueError(f"{name} must be a number {start} {low:g} to {high:g}, got {value!r}")
    return number


def make_processors(sampling: Sampling) -> LogitsProcessorList:
    """transformers' own logits processors in the order in which `generate` applies them."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(penalty=sampling.repetition_penalty))
    if sampling.temperature == 0.0:
        return processors
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(top_k=sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(top_p=sampling.top_p))
    if sampling.min_p > 0.0:
        processors.append(MinPLogitsWarper(min_p=sampling.min_p))
    return processors


def make_picker(sampling: Sampling, device: torch.device, picked: int = 0) -> Callable[[Sequence[int], torch.Tensor], int]:
    """A function (all ids so far, logits [V]) -> id of the next token. The same seed gives the same picks; `picked`: so many were picked before."""
    processors = make_processors(sampling)
    generator = torch.Generator(device=device).manual_seed(sampling.seed)
    to_skip = picked if sampling.temperature > 0 else 0

    def pick(ids: Sequence[int], logits: torch.Tensor) -> int:
        nonlocal to_skip
        scores = logits[None].float()  # (1, V)
        while to_skip:  # what a draw takes from the generator depends on the vocabulary's size alone
            torch.multinomial(torch.ones_like(scores), 1, generator=generator)
            to_skip -= 1
        if processors:
            scores = processors(torch.tensor([ids], device=scores.device), scores)
        if sampling.temperature == 0.0:
            return int(scores.argmax(dim=-1))
        return int(torch.multinomial(scores.softmax(dim=-1), 1, generator=generator))

    return pick


# ------------------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True)
class Compiling:
    """The step of a single token is compiled before the reply begins; no time or rate counts it. `text` says so."""

    text: str
    snapshot: Snapshot


@dataclass(frozen=True)
class Prefill:
    """A chunk of the prompt was read: `done` of `total` new tokens, beside `reused` that the cache already held."""

    done: int
    total: int
    seconds: float  # since the reply was asked for, without the time the caller kept the loop waiting
    snapshot: Snapshot
    reused: int = 0


@dataclass(frozen=True)
class Token:
    """A token was picked. `text` is what it adds to the reply: "" for a special token or half a character."""

    id: int
    text: str
    index: int
    seconds: float
    snapshot: Snapshot


@dataclass(frozen=True)
class Stats:
    """Figures of one reply. Rates are 0.0 where there was nothing to measure; times leave out the caller's own."""

    reused: int  # tokens of the prompt that the cache had already seen
    computed: int  # tokens of the prompt fed now
    generated: int  # tokens picked, the end-of-text token included
    time_to_first_token: float  # seconds
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    cache_nbytes: int  # bytes the cache occupies at the end, reserved ones included
    note: str = ""  # why tokens were recomputed, what was compiled, where there is something to say
    kept: int = 0  # of those reused, the ones that a prefix store has kept


@dataclass(frozen=True)
class Done:
    """The reply is over. reason: "eos", "length", "stopped", "context" or "capacity"."""

    reason: str
    stats: Stats
    snapshot: Snapshot
    text: str = ""  # what was held back until now: characters that might have begun a stop text


@dataclass(frozen=True)
class Waiting:
    """The reply begins later, once there is room for it. `text` says so."""

    text: str
    snapshot: Snapshot


Event = Compiling | Waiting | Prefill | Token | Done


class Stopwatch:
    """Seconds spent in the loop itself: paused while the caller holds the generator."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._paused_at = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def pause(self) -> None:
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        self._start += time.perf_counter() - self._paused_at


# -------------------------------------------------------------------------------------------------------- token text


class Detokenizer:
    """Turns token ids into text as they come, never half a character, special tokens left out.

    The pieces joined equal `tokenizer.decode(ids, skip_special_tokens=True)`, less an unfinished last character.
    With `stop_text`, text from its first occurrence on is swallowed and `stopped` becomes True.
    """

    def __init__(self, tokenizer: Any, stop_text: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.stop_text = stop_text
        self.stopped = False
        self._ids: list[int] = []
        self._start = 0  # the tokens from here on are decoded again, so that the first of them keeps its space
        self._read = 0  # tokens whose text has been handed out
        self._held = ""  # text that may be the beginning of stop_text

    def add(self, token_id: int) -> str:
        """The text that this token completes, possibly ""."""
        self._ids.append(token_id)
        before = self._decode(self._ids[self._start : self._read])
        after = self._decode(self._ids[self._start :])
        if after.endswith("\ufffd") or len(after) <= len(before):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return self._release(after[len(before) :])

    def read(self, ids: Sequence[int]) -> str:
        """The text of several tokens."""
        return "".join(map(self.add, ids))

    def flush(self) -> str:
        """What was held back as a possible stop text, at the end of the reply."""
        held, self._held = self._held, ""
        return held

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _release(self, piece: str) -> str:
        if not self.stop_text or self.stopped:
            return "" if self.stopped else piece
        text = self._held + piece
        if self.stop_text in text:
            self.stopped, self._held = True, ""
            return text[: text.index(self.stop_text)]
        keep = next((n for n in range(len(self.stop_text) - 1, 0, -1) if text.endswith(self.stop_text[:n])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


# -------------------------------------------------------------------------------------------------------- the forward


@torch.no_grad()  # not inference_mode: a static cache made under that can't be reset outside it
def forward(loaded: LoadedModel, cache: Any, ids: Sequence[int], compiled: bool = False, watch: Stopwatch | None = None) -> torch.Tensor:
    """Run one forward over `ids` on the cache. Returns the logits of the last position, [V] on the model's device.

    `compiled`: a single token takes the compiled step where `compile_step` has prepared it. `watch` stands still while others' forwards are waited for.
    """
    arguments = _arguments(loaded, cache, ids)
    if watch is not None:
        watch.pause()
    with loaded.forward_lock:
        if watch is not None:
            watch.resume()
        output = loaded.step(cache, **arguments) if compiled and len(ids) == 1 else loaded.model(**arguments)
    return output.logits[0, -1]


def _arguments(loaded: LoadedModel, cache: Any, ids: Sequence[int]) -> dict[str, Any]:
    """What `forward` takes to read `ids` on the cache."""
    tokens = "decoder_input_ids" if loaded.is_encoder_decoder else "input_ids"
    arguments: dict[str, Any] = {tokens: torch.tensor([ids], device=loaded.device), loaded.cache_argument: cache, "use_cache": True}  # (1, T)
    if loaded.is_encoder_decoder:
        arguments["encoder_outputs"] = _heard(loaded, cache)
    if loaded.keeps_last_logits:
        arguments["logits_to_keep"] = 1
    if loaded.takes_positions:
        seen = seen_by(cache)
        arguments["position_ids"] = torch.arange(seen, seen + len(ids), device=loaded.device)[None]
    return arguments


@torch.no_grad()
def hear(loaded: LoadedModel, cache: transformers.EncoderDecoderCache, source_ids: Sequence[int]) -> None:
    """Have the encoder read `source_ids`: its keys and values fill the cross-attention side, where every `forward` finds them.

    Raises ValueError for a cache of another kind, for one that has heard or seen something, and for no ids.
    """
    _refuse_single(loaded, cache)
    if not source_ids:
        raise ValueError("source_ids is empty: the encoder reads at least one token")
    if heard_by(cache) or seen_by(cache):
        raise ValueError(f"this cache has heard {heard_by(cache)} tokens and seen {seen_by(cache)}: reset() it first")
    source = torch.tensor([source_ids], device=loaded.device)  # (1, S)
    aside = transformers.EncoderDecoderCache(transformers.DynamicCache(), cache.cross_attention_cache)  # one token, not kept
    with loaded.forward_lock:
        loaded.model(input_ids=source, decoder_input_ids=source[:, :1], use_cache=True, **{loaded.cache_argument: aside})
    cache.is_updated = dict(aside.is_updated)


def _heard(loaded: LoadedModel, cache: Any) -> BaseModelOutput:
    """An encoder's output [1, S, hidden] in shape alone: the decoder reads what the cache has kept of the real one."""
    _refuse_single(loaded, cache)
    if not heard_by(cache):
        raise ValueError("the encoder has read nothing: give source_ids, or call hear(loaded, cache, source_ids) first")
    nothing = torch.zeros((), dtype=loaded.dtype, device=loaded.device)
    return BaseModelOutput(last_hidden_state=nothing.expand(1, heard_by(cache), loaded.config.hidden_size))


def _refuse_single(loaded: LoadedModel, cache: Any) -> None:
    if not isinstance(cache, transformers.EncoderDecoderCache):
        raise ValueError(f"{loaded.id} has an encoder and takes an EncoderDecoderCache, got {type(cache).__name__}")


# ------------------------------------------------------------------------------------------------- the compiled step

DECODE = ("auto", "eager", "compiled")  # the ways to feed the tokens that were picked
TRIED = 6  # tokens on which a compiled step is tried: different ones, or attention would not show where they stand
SECONDS_A_LAYER = 4  # to compile, measured on two cores; a few seconds in all where inductor has it on disk already


def checked_decode(decode: str | None) -> str:
    """How to decode: as asked, else as the environment's KVCACHE_DECODE says, else "auto". Raises ValueError for none of DECODE."""
    chosen = decode or os.environ.get("KVCACHE_DECODE") or "auto"
    if chosen not in DECODE:
        raise ValueError(f"decode must be one of {', '.join(DECODE)}, got {chosen!r}")
    return chosen


def _compiling_words(cache: Any) -> str:
    seconds = math.ceil(SECONDS_A_LAYER * len(cache.layers) / 10) * 10
    return f"compiling the decode step: about {seconds} seconds the first time, then at once"


@torch.no_grad()
def compile_step(loaded: LoadedModel, cache: Any, ids: Sequence[int]) -> None:
    """Compile the step of a single token for caches like this one, trying it behind the first of `ids`; `loaded.step.outcome` says what came of it.

    The model's forward lock is held for single eager tokens only: the compiled forward has modules of its own.
    """
    *first, last = [*ids, (ids[0] + 1) % decoder_config(loaded.config).vocab_size][:TRIED]

    def trial(step: Callable) -> tuple[torch.Tensor, torch.Tensor]:
        with loaded.forward_lock:  # some caches try out the model first
            spare = catalog.create(cache.name, loaded.model, **cache.parameters)
        expected = [forward(loaded, spare, [token]) for token in (*first, last)][-1]
        spare.reset()
        for token in first:
            forward(loaded, spare, [token])
        return step(**_arguments(loaded, spare, [last])).logits[0, -1], expected

    loaded.step.prepare(cache, trial)


@torch.no_grad()
def compile_batch(loaded: LoadedModel) -> None:
    """Compile the step of one token a row for batches of any size, trying it on three rows of different lengths: the next tokens of two of them, and then of all."""

    def rows(count: int) -> Batch:
        batch = Batch(model=loaded.model)
        for number in range(count):
            batch.join(catalog.create(catalog.first_fitting(loaded.config), loaded.model))
            feed(loaded.model, torch.tensor([[*range(1, number + 3)]], device=loaded.device), batch.rows[number])
        return batch

    def trial(step: Callable) -> tuple[torch.Tensor, torch.Tensor]:
        found, expected = [], []
        for count in (3, 2):
            with loaded.forward_lock:
                ours, theirs = rows(count), rows(count)
                expected += [decode_batch(loaded.model, theirs, [4, 5, 6][:count]) for _ in range(2)][-1:]
            found += [decode_batch(loaded.model, ours, [4, 5, 6][:count], forward=step) for _ in range(2)][-1:]
        return torch.cat(found).flatten(), torch.cat(expected).flatten()

    loaded.step.prepare(Batch(model=loaded.model), trial)


def compile_batch_beside(loaded: LoadedModel) -> bool:
    """Begin to compile the step of batches in a thread beside, as `compile_beside` does."""
    return _beside(lambda: compile_batch(loaded))


def compile_beside(loaded: LoadedModel, cache: Any, ids: Sequence[int]) -> bool:
    """Begin to compile a step for caches like this one in a thread beside; False, and nothing is done, while another one is compiled."""
    if compile_thread.is_busy():
        return False
    kind = catalog.create(cache.name, loaded.config, **cache.parameters)  # an empty one: the thread must not keep a conversation's
    return _beside(lambda: compile_step(loaded, kind, ids[:TRIED]))


def _beside(compile_it: Callable[[], None]) -> bool:
    threads = torch.get_num_threads()

    def work() -> None:
        if torch.get_num_threads() != threads:  # which graphs depend on
            torch.set_num_threads(threads)
        compile_it()

    return compile_thread.start(work)


def _compile_note(loaded: LoadedModel, cache: Any, decode: str, compiled_now: bool) -> str:
    """What there is to say about compiling under a reply, or ""."""
    outcome = loaded.step.outcome(cache) if decode != "eager" else None
    if outcome is None:
        return f"decoded eagerly: {loaded.step.why_not(cache)}" if decode == "compiled" else ""
    if outcome.failure:
        return f"decoded eagerly, because torch.compile failed: {outcome.failure}"
    return f"compiled the decode step in {outcome.seconds:.1f} s, which no rate counts" if compiled_now and outcome.seconds >= 1 else ""


def prefill_chunks(loaded: LoadedModel, ids: Sequence[int], seen: int, chunk: int, cuts: Collection[int] = ()) -> Iterator[Sequence[int]]:
    """Cut new ids into what is fed in one forward, given how many tokens the cache has seen.

    `cuts`: lengths of the cache at which a forward ends in any case, so that ids fed again are cut as they were the first time.

    Some recurrent models forget their state when a filled cache is fed several tokens at once, and answer on as if
    nothing had happened: they get everything at once on an empty cache, and single tokens afterwards. So do models
    that read a prompt in another way than what follows it.
    """
    if not loaded.continues_in_chunks:
        chunk = 1 if seen else tokens_at_once(decoder_config(loaded.config), filled=False) or max(len(ids), 1)
    start = 0
    for end in [*sorted(cut - seen for cut in cuts if seen < cut < seen + len(ids)), len(ids)]:
        for first in range(start, end, chunk):
            yield ids[first : min(first + chunk, end)]
        start, chunk = end, chunk if loaded.continues_in_chunks else 1


def room_left(loaded: LoadedModel, cache: Any, seen: int) -> tuple[float, str]:
    """How many more tokens may be fed after `seen`, and what sets the limit: "capacity" or "context"."""
    capacity = getattr(cache, "capacity", None)
    context = loaded.context_length
    if getattr(cache, "bounded", False) and loaded.rotary:
        context = None  # attention sees distances within the window only
    left = {"capacity": math.inf if capacity is None else capacity - seen,
            "context": math.inf if context is None else context - seen}
    reason = min(left, key=lambda name: left[name])
    return left[reason], reason


# ----------------------------------------------------------------------------------------------------------- the loop


@dataclass(frozen=True)
class Feed:
    """What a reply asks for before it goes on: the logits [V] behind these ids, fed to its cache. `picked`: one token that was just picked, not a part of the prompt."""

    ids: Sequence[int]
    picked: bool = False
    compiled: bool = False  # by the compiled step, where there is one


class Reply:
    """One reply as steps, for whoever runs the forwards: `next` gives an event, or a `Feed` whose logits the following `next` takes; None at its end.

    Arguments and errors as of `generate_tokens`; `ids` are all tokens, those not fed yet included. `on_read(seen)` is called behind each chunk of the prompt, while the cache has seen
    just that, by whoever runs the forwards. `written`: so many of the last of `new_ids` and `seen_ids` are the reply's own, which goes on behind them.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: Any,
        new_ids: Sequence[int],
        seen_ids: Sequence[int] = (),
        sampling: Sampling = Sampling(),
        stop: threading.Event | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        stop_text: str | None = None,
        source_ids: Sequence[int] = (),
        decode: str | None = None,
        cuts: Collection[int] = (),
        on_read: Callable[[int], None] = lambda seen: None,
        written: int = 0,
    ) -> None:
        self.sampling, self.decode = sampling.check(), checked_decode(decode)
        if not new_ids:
            raise ValueError("new_ids is empty: feed at least one token")
        self.prefill_chunk = whole_number("prefill_chunk", prefill_chunk, 1)
        left, limit = room_left(loaded, cache, len(seen_ids))
        if len(new_ids) > left:
            raise ValueError(f"{len(new_ids)} new tokens don't fit: the {limit} leaves room for {left:g}")
        self.loaded, self.cache, self.stop, self.stop_text, self.source_ids = loaded, cache, stop, stop_text, source_ids
        self.cuts, self.on_read, self.written = [*cuts, len(seen_ids)], on_read, written
        self.may_compile: Callable[[], bool] = lambda: True  # asked before torch.compile begins beside this reply, which it slows down meanwhile
        self.prompt_length, self.ids = len(seen_ids) + len(new_ids), [*seen_ids, *new_ids]
        self.watch = Stopwatch()
        self._steps = self._run(list(new_ids), len(seen_ids))

    def next(self, logits: torch.Tensor | None = None) -> Event | Feed | None:
        """The next step; `logits` where the one before was a `Feed`."""
        try:
            return self._steps.send(logits)
        except StopIteration:
            return None

    def _run(self, new_ids: list[int], seen: int) -> Generator[Event | Feed, torch.Tensor | None, None]:
        loaded, cache, stop, watch, decode = self.loaded, self.cache, self.stop, self.watch, self.decode
        stats = Stats(seen, 0, 0, 0.0, 0.0, 0.0, 0)

        def done(reason: str, text: str = "") -> Done:
            snapshot, note = _snapshot(cache, stats), _compile_note(loaded, cache, decode, compiles)
            return Done(reason, replace(stats, cache_nbytes=snapshot.total, note=note), snapshot, text)

        compiles = decode == "compiled" and loaded.step.awaits(cache) and not _is_set(stop)
        if compiles:
            yield Compiling(_compiling_words(cache), _snapshot(cache, stats))
            watch.pause()
            compile_step(loaded, cache, new_ids)
            watch.resume()
        logits: torch.Tensor | None = None
        if self.source_ids and not _is_set(stop):
            hear(loaded, cache, self.source_ids)
        for chunk in prefill_chunks(loaded, new_ids, seen, self.prefill_chunk, self.cuts):
            if _is_set(stop):
                yield done("stopped")
                return
            logits = yield Feed(chunk)
            stats = replace(stats, computed=stats.computed + len(chunk))
            self.on_read(seen + stats.computed)
            stats = replace(stats, prefill_tokens_per_second=_rate(stats.computed, watch.seconds))
            yield Prefill(stats.computed, len(new_ids), watch.seconds, _snapshot(cache, stats), seen)
        if _is_set(stop):
            yield done("stopped")
            return

        ids = self.ids
        pick = make_picker(self.sampling, loaded.device, self.written)
        text = Detokenizer(loaded.tokenizer, self.stop_text)
        text.read(ids[len(ids) - self.written :])
        wants_step = decode == "auto" and loaded.step.awaits(cache)  # asked once a reply: it looks for a compiler
        for index in range(self.sampling.max_new_tokens):
            assert logits is not None
            ids.append(pick(ids, logits))
            piece, seconds = text.add(ids[-1]), watch.seconds
            stats = replace(stats, generated=index + 1, time_to_first_token=stats.time_to_first_token or seconds)
            stats = replace(stats, decode_tokens_per_second=_rate(index, seconds - stats.time_to_first_token))
            yield Token(ids[-1], piece, index, seconds, _snapshot(cache, stats))
            reason = _why_stop(loaded, cache, ids, text, stop, index + 1 == self.sampling.max_new_tokens)
            if reason is not None:
                yield done(reason, text.flush())
                return
            wants_step = wants_step and not (self.may_compile() and compile_beside(loaded, cache, new_ids))
            logits = yield Feed(ids[-1:], picked=True, compiled=decode != "eager")


def generate_tokens(loaded: LoadedModel, cache: Any, new_ids: Sequence[int], *arguments: Any, **options: Any) -> Iterator[Event]:
    """Feed `new_ids` to a cache that has seen `seen_ids`, then pick and feed tokens; yields Prefill, Token, Done. Arguments: those of `Reply`, in its order.

    `decode` is how picked tokens are fed. "auto", unless the environment's KVCACHE_DECODE says otherwise: eagerly, while torch.compile works in a thread
    beside; by the compiled step once that has passed its trial. "eager": never compiled. "compiled": compiling comes first and is waited for, for measuring
    and tests. Where it fails, decoding is eager and Done's note says why.
    After a Prefill the cache has seen `seen_ids + new_ids[:done]`, after a Token everything but that token: the last
    picked token is never fed. `source_ids`: what the encoder, where there is one, reads before. `cuts`: see `prefill_chunks`. Stop ends it after the chunk or token at work. ValueError for no new ids, more than fit,
    or bad sampling; whatever a forward raises comes through as it is, and leaves the cache unusable until reset.
    """
    reply = Reply(loaded, cache, new_ids, *arguments, **options)
    step = reply.next()
    while step is not None:
        if isinstance(step, Feed):
            step = reply.next(forward(loaded, cache, step.ids, step.compiled, reply.watch))
        else:
            reply.watch.pause()
            yield step
            reply.watch.resume()
            step = reply.next()


def _why_stop(
    loaded: LoadedModel, cache: Any, ids: list[int], text: Detokenizer, stop: threading.Event | None, at_limit: bool
) -> str | None:
    """Why the loop ends after the token just picked, or None. The cache has seen all of `ids` but the last."""
    if ids[-1] in loaded.eos_ids or text.stopped:
        return "eos"
    if _is_set(stop):
        return "stopped"
    if at_limit:
        return "length"
    left, limit = room_left(loaded, cache, len(ids) - 1)
    return limit if left < 1 else None


def _snapshot(cache: Any, stats: Stats) -> Snapshot:
    """The cache's snapshot with the tokens it has seen, which purely recurrent layers don't count."""
    return replace(take_snapshot(cache), seen=stats.reused + stats.computed + max(stats.generated - 1, 0))


def _is_set(stop: threading.Event | None) -> bool:
    return stop is not None and stop.is_set()


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens and seconds > 0 else 0.0
