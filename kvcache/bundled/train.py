"""Rebuild the default bundled model from nothing: `python -m kvcache.bundled.train --minutes 80 --work build/llama`.

Makes the tokenizer, initialises the weights, trains on conversations made as it goes, exports a model folder every ten minutes and at the
end. Stop it at any time and start it again with the same arguments: it goes on from its last checkpoint. `--smoke` does all of it
in seconds on tiny numbers.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import environment


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: share of the time, tokens per row, rows per step."""

    share: float
    length: int
    rows: int


CURRICULUM = (Stage(0.12, 128, 32), Stage(0.14, 256, 16), Stage(0.30, 512, 12), Stage(0.30, 1024, 6), Stage(0.14, 2048, 4))
SMOKE = (Stage(0.6, 64, 4), Stage(0.4, 128, 2))
MUON_RATE, ADAMW_RATE, FLAT = 0.01, 5e-3, 0.5  # rates are flat until this share of the time, then fall to 0


def stage_at(share: float, curriculum=CURRICULUM) -> Stage:
    """The stage for a share of the training time done."""
    for stage in curriculum:
        if share < stage.share:
            return stage
        share -= stage.share
    return curriculum[-1]


def rate_at(share: float) -> float:
    """The factor on the learning rates for a share of the training time done."""
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
    parser.add_argument("--minutes", type=float, default=80, help="training time in all, interruptions not counted")
    parser.add_argument("--work", type=Path, default=Path("build/kvlab-llama-4m"), help="checkpoints and the exported model go here")
    parser.add_argument("--device", default=None, help="cpu or cuda; found by itself")
    parser.add_argument("--threads", type=int, default=2, help="parts of each batch computed side by side, on one core each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the model; needs a C++ compiler on CPU")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that everything works")
    return parser.parse_args(arguments)


class Run:
    """One training run: model, optimisers, data and how far they are."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from . import batches, model, muon, tokenizer

        self.options, self.curriculum = options, SMOKE if options.smoke else CURRICULUM
        self.total = 5.0 if options.smoke else options.minutes * 60
        self.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        # One thread per part of the batch waits once a step; threads inside every operation wait thousands of times.
        self.pool = ThreadPoolExecutor(options.threads, initializer=torch.set_num_threads, initargs=(1,))
        torch.manual_seed(options.seed)
        self.folder = options.work / "export"
        self.checkpoint = options.work / "checkpoint.pt"
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / "tokenizer.json").exists():
            self.tok = tokenizer.PreTrainedTokenizerFast.from_pretrained(self.folder)
        else:
            self.tok = tokenizer.train(120 if options.smoke else 3000, options.seed)
            self.tok.save_pretrained(self.folder)
        self.model = model.fresh(options.seed).to(self.device)
        named = list(self.model.named_parameters())
        attention, forward = [[p for n, p in named if p.dim() == 2 and part in n] for part in ("self_attn", "mlp")]
        rest = [p for n, p in named if p.dim() != 2 or "embed" in n]
        adamw = torch.optim.AdamW(rest, lr=ADAMW_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        self.optimisers = [muon.Muon(attention, lr=MUON_RATE), muon.Muon(forward, lr=MUON_RATE), adamw]
        self.step, self.tokens, self.seconds, self.loss = 0, 0, 0.0, float("nan")
        if self.checkpoint.exists():
            self.load()
        self.body = torch.compile(self.model.model, dynamic=False) if options.compile else self.model.model
        stage = stage_at(self.seconds / self.total, self.curriculum)
        made_here = (str(self.folder), options.seed, self.step)
        self.data = batches.Inline(*made_here) if options.smoke else batches.Background(*made_here, stage.rows, stage.length)

    def train(self) -> None:
        """Until the time is over."""
        from tqdm import tqdm

        begin, before, saved, exported = time.monotonic(), self.seconds, self.seconds, self.seconds
        with tqdm(total=round(self.total), initial=round(before), unit="s", mininterval=10) as bar:
            while self.seconds < self.total:
                report = self.one_step(log=self.step % 25 == 0)
                self.seconds = before + time.monotonic() - begin
                bar.update(int(self.seconds) - bar.n)
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
        share = self.seconds / self.total
        stage = stage_at(share, self.curriculum)
        ids, weights = self.data.next(stage.rows, stage.length)
        ids, weights = ids.long().to(self.device), weights.to(self.device)
        total = float(weights[:, 1:].sum())
        parts = list(self.pool.map(lambda part: self.gradients(*part, total), zip(ids.chunk(self.options.threads), weights.chunk(self.options.threads))))
        for p, *grads in zip(self.model.parameters(), *(grads for _, _, grads in parts)):
            p.grad = sum(grads)
        self.update(rate_at(share))
        self.step += 1
        self.tokens += ids[:, 1:].numel()
        value, right = sum(loss for loss, _, _ in parts), parts[0][1]
        self.loss = value if self.loss != self.loss else 0.98 * self.loss + 0.02 * value
        return f"length {ids.shape[1] - 1} loss {self.loss:.3f} recalled tokens right {right:.3f}" if log else ""

    def gradients(self, ids, weights, total: float):
        """The weighted loss of some rows as a share of `total` weight, the share of recalled tokens predicted right, and the gradients.

        ids, weights [B, T + 1].
        """
        import torch
        import torch.nn.functional as F

        from .batches import RECALLED

        hidden = self.body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # [B, T, d]
        w = weights[:, 1:].flatten()
        keep = w > 0
        logits, targets, w = self.model.lm_head(hidden.flatten(0, 1)[keep]), ids[:, 1:].flatten()[keep], w[keep]
        loss = (F.cross_entropy(logits.float(), targets, reduction="none") * w).sum() / total
        told = w == RECALLED
        right = (logits[told].argmax(-1) == targets[told]).float().mean().item()
        return loss.item(), right, torch.autograd.grad(loss, list(self.model.parameters()))

    def update(self, factor: float) -> None:
        """Clip the gradients and step both optimisers."""
        import torch

        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, rate in zip(self.optimisers, (MUON_RATE, MUON_RATE, ADAMW_RATE)):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        list(self.pool.map(lambda optimiser: optimiser.step(), self.optimisers))

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

        from . import model

        model.export(self.model, self.tok, self.folder)
        note = {"steps": self.step, "tokens": self.tokens, "minutes": round(self.seconds / 60, 1), "loss": round(self.loss, 4), "seed": self.options.seed}
        (self.folder / "training.json").write_text(json.dumps(note, indent=1) + "\n")


if __name__ == "__main__":
    environment.restart("kvcache.bundled.train")
    main()
