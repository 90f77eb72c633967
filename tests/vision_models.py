"""Tiny models that see, and talks with pictures in them."""

import pytest
import tiny_models
import torch
import transformers

import kvcache

PICTURE, BEGIN = 95, 94  # token ids


def vision_models(kind: str) -> transformers.PreTrainedModel:
    """A tiny model whose pictures are of token PICTURE."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny_models.EXTRA, kind, {**tiny_models.EXTRA.get(kind, {}), **dict.fromkeys(("image_token_id", "image_token_index"), PICTURE), "vision_start_token_id": BEGIN, "video_token_id": 93, "mm_tokens_per_image": 16})
        return tiny_models.build(kind, transformers.AutoModelForImageTextToText)


def words(count: int, seed: int, rows: int = 1) -> dict[str, torch.Tensor]:
    """A turn of text."""
    ids = torch.randint(3, 90, (rows, count), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "mm_token_type_ids": torch.zeros_like(ids)}


def picture(model: transformers.PreTrainedModel, seed: int, height: int = 4, width: int = 6, rows: int = 1) -> dict[str, torch.Tensor]:
    """A turn with a picture in it: what a processor makes of one per row."""
    eyes = model.config.vision_config
    channels = getattr(eyes, "in_channels", None) or getattr(eyes, "num_channels", None) or eyes.in_chans
    size = (channels, eyes.patch_size, eyes.patch_size) if model.config.model_type == "paddleocr_vl" else (channels * eyes.patch_size**2 * getattr(eyes, "temporal_patch_size", 1),)
    patches = torch.randn(rows * height * width, *size, generator=torch.Generator().manual_seed(seed))
    shown = torch.full((rows, height * width // eyes.spatial_merge_size**2), PICTURE)
    ids = torch.cat([words(5, seed, rows)["input_ids"], torch.full((rows, 1), BEGIN), shown, words(4, seed + 1, rows)["input_ids"]], dim=1)
    return {"input_ids": ids, "mm_token_type_ids": (ids == PICTURE).int(), "pixel_values": patches, "image_grid_thw": torch.tensor([[1, height, width]] * rows)}


def joined(turns: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """All turns in one forward, of one row."""
    names = {name for turn in turns for name in turn}
    return {name: torch.cat([turn[name] for turn in turns if name in turn], dim=1 if name in ("input_ids", "mm_token_type_ids") else 0) for name in names}


@torch.no_grad()
def fed(model, cache, turns) -> torch.Tensor:
    """The logits [B, T, V] of turns, text without what only pictures need."""
    return torch.cat([kvcache.feed(model, turn["input_ids"], cache, **{name: value for name, value in turn.items() if name != "input_ids" and "pixel_values" in turn}) for turn in turns], dim=1)


@torch.no_grad()
def exact(model, turns) -> torch.Tensor:
    model.model.rope_deltas = None
    return model(**joined(turns), use_cache=False).logits


def off(ours: torch.Tensor, right: torch.Tensor) -> float:
    return ((ours - right).norm() / right.norm()).item()


def talk(model) -> list[dict[str, torch.Tensor]]:
    return [words(3, 1), picture(model, 2), words(1, 3), words(1, 4), words(6, 5), picture(model, 6, 6, 4), words(1, 7), words(2, 8)]
