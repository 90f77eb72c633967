"""Average the weights of two models of one shape: `python -m kvcache.bundled.average BEFORE AFTER --share 0.6 --out FOLDER [--rounded]`.

Between weights and what further training made of them lies a model that keeps what the training lost and has most of what it won.
Source: Wortsman et al. 2022, arXiv 2109.01903.
"""

import argparse
import shutil
from pathlib import Path

from huggingface_hub import save_torch_state_dict

from . import family


def average(before: Path, after: Path, share: float, out: Path, rounded: bool = False) -> None:
    """Write (1 - share) of the weights in `before` and `share` of those in `after`, beside the other files of `after`. Raises ValueError where their shapes differ.

    `rounded`: with no more bits than bfloat16 has, though in the type they had: what training in bfloat16 computed with, and git packs it into four fifths of the bytes.
    """
    old, new = family.weights(before), family.weights(after)
    odd = [name for name in {*old, *new} if name not in old or name not in new or old[name].shape != new[name].shape]
    if odd:
        raise ValueError(f"{before} and {after} differ in the shape of {', '.join(sorted(odd)[:3])}: only models of one shape can be averaged")
    shutil.copytree(after, out, dirs_exist_ok=True)
    mixed = {name: old[name].float().lerp(new[name].float(), share) for name in new}
    mixed = {name: (p.bfloat16() if rounded else p).to(new[name].dtype) for name, p in mixed.items()}
    save_torch_state_dict(mixed, out, max_shard_size=family.FILE_SIZE, metadata={"format": "pt"})


def main(arguments: list[str] | None = None) -> None:
    """Average two folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the second model's weights, 0 to 1")
    parser.add_argument("--rounded", action="store_true", help="keep as many bits of a weight as bfloat16 does")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    average(options.before, options.after, options.share, options.out, options.rounded)


if __name__ == "__main__":
    main()
