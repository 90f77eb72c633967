"""A model of another kind learns, layer by layer, to do what a teacher's layers did, before it is trained as a whole.

Each of its parts is fed what one sublayer of the teacher was fed and is asked for what that gave: the mean square error, as a share of the
teacher's mean square. After Bick et al. 2024, "Transformers to SSMs", arXiv 2408.10189, whose second stage this is.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ..weights import LOADING

RATE, FLAT = 4e-3, 0.3  # flat until this share of the steps, then falling to 0


def imitate(model: nn.Module, pupils: Mapping[str, Callable[[Tensor], Tensor]], start: Path, ids: Callable[[int], Tensor], steps: int) -> dict[str, float]:
    """Train parts of `model` in place; `pupils` are named by the teacher's sublayers. ids(step) [B, T] is what is read. Returns each one's error at the end."""
    with LOADING:
        teacher = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    teacher.eval().to(next(model.parameters()).device)
    fed, given = recorded({name: teacher.get_submodule(name) for name in pupils})
    parameters = list(model.parameters())  # those of no pupil get no gradient and stay
    adamw = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    errors = dict.fromkeys(pupils, 1.0)
    for step in range(steps):
        with torch.no_grad():
            teacher.model(ids(step).to(teacher.device), use_cache=False)
        lost = {name: error(pupil(fed[name]), given[name]) for name, pupil in pupils.items()}
        adamw.zero_grad()
        sum(lost.values()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.param_groups[0]["lr"] = RATE * min(1.0, (1 - step / steps) / (1 - FLAT))
        adamw.step()
        errors = {name: 0.95 * errors[name] + 0.05 * loss.item() for name, loss in lost.items()}
    return errors


def error(output: Tensor, wanted: Tensor) -> Tensor:
    """The mean square error as a share of the mean square wanted."""
    return (output - wanted).square().mean() / wanted.square().mean()


def recorded(modules: Mapping[str, nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What goes into and comes out of each module [B, T, d], kept anew in every forward."""
    fed, given = {}, {}

    def keep(name: str) -> Callable:
        def hook(module, args, kwargs, output) -> None:
            fed[name] = args[0] if args else kwargs["hidden_states"]
            given[name] = output[0] if isinstance(output, tuple) else output

        return hook

    for name, module in modules.items():
        module.register_forward_hook(keep(name), with_kwargs=True)
    return fed, given
