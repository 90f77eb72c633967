"""Train a bundled model: `python -m kvcache.bundled.train --tokens 350e6 --rows 8 --makers 15 --bfloat16 --compile --work build/llama` makes one of the default's shape from nothing.

On one H100 the gradients of rows of 1,024 tokens come at 1.4 million tokens a second, compiled (0.5 million otherwise): more than five cores made beside it. Two CPU cores alone train on one to eight thousand a second.
`--model kvlab-granite-5m --start build/kvlab-llama-4m/export --tokens 15e6` makes a relative, which begins with another's tokenizer and weights.
Initialises the weights, trains on conversations made as it goes, exports a model folder every ten minutes and at the end. Stop it at any time
and start it again with the same arguments: it goes on from its last checkpoint. `--smoke` does all of it in seconds on tiny numbers.
"""

import argparse
import copy
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from . import DEFAULT, NAMES, environment


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: share of all tokens, tokens per row, rows per step."""

    share: float
    length: int
    rows: int


CURRICULUM = (Stage(0.04, 128, 32), Stage(0.08, 256, 16), Stage(0.26, 512, 12), Stage(0.34, 1024, 6), Stage(0.28, 2048, 4))
FURTHER = (Stage(0.06, 256, 24), Stage(0.28, 512, 12), Stage(0.38, 1024, 6), Stage(0.28, 2048, 4))  # for weights that know their language already
LONGER = (Stage(0.55, 1024, 6), Stage(0.45, 2048, 4))  # the same, for what was said long ago
TALKING = (Stage(0.3, 1024, 6), Stage(0.25, 256, 24), Stage(0.45, 1024, 6))  # for talk, lists and stories
READING = (Stage(0.25, 128, 24), Stage(0.45, 256, 12), Stage(0.30, 512, 6))  # of conversations about texts of up to 1,024 tokens
SMOKE = (Stage(0.6, 64, 4), Stage(0.4, 128, 2))
SMOKE_TOKENS = 4_000
IMITATION_STEPS, IMITATION_ROWS = 300, (4, 256)  # rows of how many tokens
MUON_RATE, ADAMW_RATE, FLAT = 0.01, 5e-3, 0.5  # rates are flat until this share of the tokens, then fall to 0
BLOCKS = ("self_attn", "mlp", "mamba", "shared_mlp", "mixer")  # by name: what writes into a layer's stream
SLOW, SLOW_RATE = ("conv1d", "A_log", "dt_bias"), 5e-4  # by name: few small numbers that steer all others


def stage_at(share: float, curriculum=CURRICULUM) -> Stage:
    """The stage for a share of the tokens seen."""
    for stage in curriculum:
        if share < stage.share:
            return stage
        share -= stage.share
    return curriculum[-1]


def curriculum(options: argparse.Namespace, reads: bool) -> tuple[Stage, ...]:
    """The stages for what was asked for. Raises ValueError for long rows, or more talk, of a model that reads texts, and for both at once."""
    for name in ("long", "talk"):
        if reads and getattr(options, name):
            raise ValueError(f"--{name} is for models of conversations alone: one that reads texts has rows of its own")
    if options.long and options.talk:
        raise ValueError("--long and --talk have rows of their own each: choose one")
    if options.smoke:
        return SMOKE
    if reads:
        return READING
    return LONGER if options.long else TALKING if options.talk else FURTHER if options.start else CURRICULUM


def rate_at(share: float) -> float:
    """The factor on the learning rates for a share of the tokens seen."""
    return 1.0 if share < FLAT else max(0.0, (1 - share) / (1 - FLAT))


def main(arguments: list[str] | None = None) -> Path:
    """Train and return the folder of the exported model."""
    options = parse(arguments)
    run = Run(options)
    try:
        run.train()
    finally:
        run.data.close()
    return run.folder


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT, choices=NAMES)
    parser.add_argument("--start", type=Path, help="folder of a model whose weights and tokenizer to begin with")
    parser.add_argument("--tokens", type=float, default=60e6, help="training in all, interruptions included")
    parser.add_argument("--minutes", type=float, help="train for so long, interruptions left out, in place of a number of tokens")
    parser.add_argument("--long", action="store_true", help="rows of 1,024 and 2,048 tokens alone")
    parser.add_argument("--talk", action="store_true", help="more lists, stories and small talk: for the last part of a training")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of what each block of a layer writes that is left out at random")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--work", type=Path, help="checkpoints and the exported model go here (default: build/MODEL)")
    parser.add_argument("--device", default=None, help="cpu or cuda; found by itself")
    parser.add_argument("--threads", type=int, help="parts of each batch computed side by side, on one core each; 2 on a CPU, 1 on a GPU")
    parser.add_argument("--rows", type=int, default=1, help="factor on the rows of each step: 8 on a large GPU")
    parser.add_argument("--makers", type=int, default=1, help="processes that make data: a dozen for a large GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bfloat16", action="store_true", help="multiply matrices in bfloat16: on GPUs, and 1.6 times as fast on a CPU with AVX-512 BF16; slow on one without")
    parser.add_argument("--compile", action="store_true", help="compile each layer: for a GPU; needs a C++ compiler on a CPU")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that everything works")
    options = parser.parse_args(arguments)
    for name in ("tokens", "minutes", "threads", "rows", "makers"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name} must be above 0, got {value}")
    if not 0 <= options.dropout < 1:
        parser.error(f"--dropout must be from 0 to below 1, got {options.dropout}")
    options.work = options.work or Path("build") / options.model
    return options


def optimisers(model) -> tuple[list, list[float]]:
    """Muon for the matrices of attention and states and for those of feed-forward blocks, AdamW for the rest; and their learning rates."""
    from .muon import Muon

    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if p.dim() == 2 and "embed" not in name]
    forward, mixing = ([p for name, p in matrices if ("mlp" in name) == wanted] for wanted in (True, False))
    others = [(name, p) for name, p in named if p.dim() != 2 or "embed" in name]
    slow, rest = ([p for name, p in others if any(part in name for part in SLOW) == wanted] for wanted in (True, False))
    made = [(Muon, forward, MUON_RATE), (Muon, mixing, MUON_RATE), (_adamw, rest, ADAMW_RATE), (_adamw, slow, SLOW_RATE)]
    made = [(kind, parameters, rate) for kind, parameters, rate in made if parameters]
    return [kind(parameters, lr=rate) for kind, parameters, rate in made], [rate for *_, rate in made]


def _adamw(parameters, lr: float):
    import torch

    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)


def drop_out(model, share: float) -> None:
    """While it trains, leave out some of what each attention, state and feed-forward block writes: phrases that are read hundreds of times are not learnt by heart. Raises ValueError for a model without such blocks."""
    import torch.nn.functional as F

    def some(module, read, written):
        if not module.training:
            return written
        return (F.dropout(written[0], share), *written[1:]) if isinstance(written, tuple) else F.dropout(written, share)

    blocks = [module for name, module in model.named_modules() if name.rpartition(".")[2] in BLOCKS]
    if not blocks:
        raise ValueError(f"--dropout is for models with blocks called {', '.join(BLOCKS)}, which a {model.config.model_type} has not")
    for block in blocks:
        block.register_forward_hook(some)


class Run:
    """One training run: model, optimisers, data and how far they are."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from . import attend, batches, family, texts

        self.options, self.member = options, family.MEMBERS[options.model]
        self.curriculum = curriculum(options, self.member.reads)
        self.total = SMOKE_TOKENS if options.smoke else options.tokens
        self.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.threads = options.threads or (2 if self.device == "cpu" else 1)
        # One thread per part of the batch waits once a step; threads inside every operation wait thousands of times.
        self.pool = ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))
        torch.manual_seed(options.seed)
        self.folder = options.work / "export"
        self.checkpoint = options.work / "checkpoint.pt"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tok = self.tokenizer()
        self.tok.save_pretrained(self.folder)
        self.model = family.fresh(options.model, options.seed, options.start, self.tok).to(self.device)
        self.optimisers, self.rates = optimisers(self.model)
        self.step, self.tokens, self.seconds, self.loss = 0, 0, 0.0, None
        if self.checkpoint.exists():
            self.load()
        elif options.start:
            self.imitate()
        if options.dropout:
            drop_out(self.model, options.dropout)
        if options.compile:
            family.compile_layers(self.model)
        self.worker = self.model
        if self.device == "cpu" and options.bfloat16 and self.member.trees:
            self.worker = copy.deepcopy(self.model).to(torch.bfloat16)  # a third faster than autocast, which converts what each matrix reads; weights are kept in float32
            self.worker.set_attn_implementation(attend.NAME)
        stage = self.stage()
        make = texts.batch if self.member.reads else batches.with_trees if self.member.trees else batches.batch
        if options.talk:
            make = partial(make, mix=batches.TALK)
        made_here = (make, str(self.folder), options.seed, self.step)
        self.data = batches.Inline(*made_here) if options.smoke else batches.Background(*made_here, stage.rows, stage.length, options.makers)

    def tokenizer(self):
        """The one this run began with, or that of the model it starts from, or a new one; with as many whole words as the model has room for."""
        from . import tokenizer, words

        if (self.folder / "tokenizer.json").exists():
            return tokenizer.PreTrainedTokenizerFast.from_pretrained(self.folder)
        few, start, seed = self.options.smoke, self.options.start, self.options.seed
        tok = tokenizer.PreTrainedTokenizerFast.from_pretrained(start) if start else tokenizer.train(120 if few else 3000, seed)
        if len(tok) > self.member.tokens:
            return words.shortened(tok, self.member.tokens)
        return words.extended(tok, 20 if few else 12_000, self.member.tokens, seed) if len(tok) < self.member.tokens else tok

    def imitate(self) -> None:
        """Let the modules that stand where the teacher has others learn what those do, before all train together."""
        from transformers import AutoConfig

        from . import batches, imitate

        pupils = self.member.pupils(self.model)
        if pupils and AutoConfig.from_pretrained(self.options.start).model_type != self.model.config.model_type:
            steps, (rows, length) = (2, (2, 64)) if self.options.smoke else (IMITATION_STEPS, IMITATION_ROWS)
            begin = time.monotonic()
            errors = imitate.imitate(self.model, pupils, self.options.start, lambda step: batches.batch(self.tok, -1 - self.options.seed, step, rows, length)[0].long(), steps)
            self.seconds, self.tokens = time.monotonic() - begin, steps * rows * length
            print("errors after imitation: " + ", ".join(f"{name} {error:.3f}" for name, error in errors.items()), flush=True)
            self.save()

    def share(self) -> float:
        """How much of the training is done, 0 to 1."""
        return self.seconds / (60 * self.options.minutes) if self.options.minutes else self.tokens / self.total

    def stage(self) -> Stage:
        """The part of the curriculum that training is in, with the rows of a step as they were asked for."""
        stage = stage_at(self.share(), self.curriculum)
        return replace(stage, rows=stage.rows * self.options.rows)

    def train(self) -> None:
        """Until all tokens were seen, or the minutes are over."""
        from tqdm import tqdm

        stage = self.stage()
        self.data.next(stage.rows, stage.length)  # not used: it comes when those who make them are ready, which is no time of training
        begin, before, saved, exported = time.monotonic(), self.seconds, self.seconds, self.seconds
        with tqdm(total=None if self.options.minutes else round(self.total), initial=self.tokens, unit="tok", unit_scale=True, mininterval=10) as bar:
            while self.share() < 1:
                report = self.one_step(log=self.step % 25 == 0)
                self.seconds = before + time.monotonic() - begin
                bar.update(self.tokens - bar.n)
                if report:
                    tqdm.write(f"step {self.step} tokens {self.tokens:,} minutes {self.seconds / 60:.1f} {report}")
                if self.seconds - saved > 120:
                    saved = self.seconds
                    self.save()
                if self.seconds - exported > 600:
                    exported = self.seconds
                    self.export()
        self.save()
        self.export()

    def one_step(self, log: bool = False) -> str:
        """One step; returns a line for the log now and then."""
        share, stage = self.share(), self.stage()
        batch = self.data.next(stage.rows, stage.length)
        ids, weights = batch[:2]
        total = float(weights[:, 1:].sum())
        parts = list(self.pool.map(lambda part: self.gradients(total, *part), zip(*(tensor.chunk(self.threads) for tensor in batch))))
        for p, *grads in zip(self.model.parameters(), *(grads for _, _, grads in parts)):
            p.grad = sum(grad.float() for grad in grads)
        self.update(self.options.rate * rate_at(share))
        self.step += 1
        self.tokens += ids[:, 1:].numel()
        value, right = sum(loss for loss, _, _ in parts), parts[0][1]
        self.loss = value if self.loss is None else 0.98 * self.loss + 0.02 * value
        return f"length {ids.shape[1] - 1} loss {self.loss:.3f} recalled tokens right {right():.3f}" if log else ""

    def gradients(self, total: float, ids, weights, beside=None):
        """The weighted loss of some rows as a share of `total` weight, what tells the share of recalled tokens predicted right, and the gradients.

        ids, weights [B, T + 1]; beside: what an encoder reads [B, S], or the places of tokens in trees [B, T + 1, 3]; all in the CPU's memory.
        """
        import torch
        import torch.nn.functional as F

        from .batches import RECALLED

        w = weights[:, 1:].flatten()
        kept = w.nonzero().squeeze(1)  # found here: a GPU would have to be waited for
        targets, w = ids[:, 1:].flatten()[kept], w[kept]
        ids, beside, kept, targets, w = (self.moved(tensor) for tensor in (ids, beside, kept, targets.long(), w))
        with self.precision():
            logits = self.logits(ids[:, :-1].long(), beside, kept)
        loss = (F.cross_entropy(logits.float(), targets, reduction="none") * w).sum() / total

        def right() -> float:
            told = w == RECALLED
            return (logits[told].argmax(-1) == targets[told]).float().mean().item()

        return loss.detach(), right, torch.autograd.grad(loss, list(self.worker.parameters()))

    def moved(self, tensor):
        """A tensor on the device of the model, copied there while the GPU computes; None stays None."""
        return tensor if tensor is None or self.device == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def logits(self, ids, beside, kept):
        """[N, V] of ids [B, T], after texts or with places as `gradients` takes them, at the N places in B T that are kept."""
        from .batches import masks

        if self.member.reads:
            texts = beside.long()
            read = {"input_ids": texts, "attention_mask": texts != self.model.config.pad_token_id}
            return self.worker(**read, decoder_input_ids=ids, use_cache=False).logits.flatten(0, 1)[kept]
        placed = {} if beside is None else {"attention_mask": masks(beside[:, :-1], self.model.config), "position_ids": beside[:, :-1, 2].long()}
        return self.worker.lm_head(self.worker.base_model(input_ids=ids, use_cache=False, **placed).last_hidden_state.flatten(0, 1)[kept])

    def update(self, factor: float) -> None:
        """Clip the gradients and step both optimisers."""
        import torch

        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, rate in zip(self.optimisers, self.rates):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        list(self.pool.map(self.step_of, self.optimisers))
        if self.worker is not self.model:
            with torch.no_grad():
                torch._foreach_copy_(list(self.worker.parameters()), list(self.model.parameters()))

    def step_of(self, optimiser) -> None:
        with self.precision():
            optimiser.step()

    def precision(self):
        """What matrices are multiplied in by the thread that asks; parameters, norms and sums stay in float32."""
        import torch

        return torch.autocast(self.device, torch.bfloat16, enabled=self.options.bfloat16)

    def save(self) -> None:
        """A checkpoint from which the same arguments go on."""
        import torch

        state = {"model": self.model.state_dict(), "optimisers": [o.state_dict() for o in self.optimisers],
                 "progress": (self.step, self.tokens, self.seconds, self.loss)}
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").replace(self.checkpoint)

    def load(self) -> None:
        import torch

        state = torch.load(self.checkpoint, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        self.step, self.tokens, self.seconds, self.loss = state["progress"]

    def export(self) -> None:
        """The model as it is, as a folder for from_pretrained, with a note of how far training was."""
        import json

        from . import family

        family.export(self.model, self.tok, self.folder)
        note = {"model": self.options.model, "start": self.options.start and self.options.start.name, "steps": self.step, "tokens": self.tokens, "minutes": round(self.seconds / 60, 1), "loss": self.loss and round(float(self.loss), 4), "seed": self.options.seed,
                "rate": self.options.rate, "bfloat16": self.options.bfloat16, "rows": self.options.rows, "long": self.options.long, "talk": self.options.talk, "dropout": self.options.dropout}
        (self.folder / "training.json").write_text(json.dumps(note, indent=1) + "\n")


if __name__ == "__main__":
    environment.restart("kvcache.bundled.train")
    main()
