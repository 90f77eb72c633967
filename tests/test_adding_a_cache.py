"""docs/adding-a-cache.md does what it says: each of its files, put into a copy of the tree, is tried by the one command that the page names."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from architectures import COMMON, model_of, token_ids
from transformers import LlamaConfig, LlamaForCausalLM

import kvcache
from kvcache import catalog

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "adding-a-cache.md").read_text()
FILES = dict(re.findall(r"`kvcache/caches/(last_tokens|tova)\.py`.*?```python\n(.*?)```", PAGE, re.S))
COMMAND = re.search(r"```\n(python -m kvcache\.measure\.report .*?)\n```", PAGE).group(1)


@pytest.fixture
def page_cache(request, tmp_path, monkeypatch):
    """A file of the page as a module, its cache in the catalog."""
    path = tmp_path / f"{request.param}.py"
    path.write_text(FILES[request.param])
    spec = importlib.util.spec_from_file_location(request.param, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(catalog.ENTRIES, request.param, module.ENTRY)
    return module


@pytest.mark.slow
def test_the_files_of_the_page_in_a_copy_of_the_tree_pass_the_pages_command(tmp_path):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for path in filter(None, listed):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(ROOT / path) if path.endswith(".safetensors") else target.write_bytes((ROOT / path).read_bytes())
    for name, text in FILES.items():
        (tmp_path / "kvcache" / "caches" / f"{name}.py").write_text(text)
    others = f"(not it_is_right and not api and not perplexity) or {' or '.join(FILES)}"  # operations on the caches that are there have their own turn
    command = COMMAND.replace("python ", f"{sys.executable} ") + f" -p no:cacheprovider -k '{others}'"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    table = (tmp_path / "docs" / "caches.md").read_text()
    assert all(f"`{name}`" in table for name in FILES)


def test_tova_fits_on_a_page():
    lines = [line for line in FILES["tova"].splitlines() if line.strip()]
    assert len(lines) <= 40


@pytest.mark.parametrize("page_cache", ["last_tokens"], indirect=True)
@torch.no_grad()
def test_the_window_of_the_page_holds_a_hundred_tokens_and_predicts_its_bytes(page_cache):
    model = model_of("llama")
    cache = kvcache.create("last_tokens", model)
    kvcache.feed(model, token_ids(1, 150), cache)
    assert cache.held_length() == 100 and kvcache.predict_memory("last_tokens", model, 150).total == kvcache.measure_memory(cache).total


@torch.no_grad()
def slow_tova(model, ids, bounds, budget):
    """[B, T, V] of a one-layer Llama, whose attention is written out: after each piece, the tokens kept are those that its last query attended to most."""
    layer, config = model.model.layers[0], model.config
    heads, groups, dim = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    kept, logits = [], []
    hidden = model.model.embed_tokens(ids)
    normed = layer.input_layernorm(hidden)
    cos, sin = model.model.rotary_emb(hidden, torch.arange(ids.shape[1])[None])

    def rotated(states):
        turned = torch.cat([-states[..., dim // 2 :], states[..., : dim // 2]], dim=-1)
        return states * cos[:, None] + turned * sin[:, None]

    attention = layer.self_attn
    query, key, value = (part(normed).unflatten(-1, (-1, dim)).transpose(1, 2) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    query, key = rotated(query), rotated(key)
    for first, last in bounds:
        kept += range(first, last)
        out = []
        for token in range(first, last):
            places = [place for place in kept if place <= token]
            scores = torch.einsum("hgd,htd->hgt", query[0, :, token].view(heads, groups, dim), key[0, :, places]) * dim**-0.5
            weights = scores.softmax(-1)
            out.append(torch.einsum("hgt,htd->hgd", weights, value[0, :, places]).reshape(-1))
        if len(kept) > budget:
            kept = sorted(kept[place] for place in weights.mean((0, 1)).topk(budget).indices.tolist())
        after = hidden[:, first:last] + attention.o_proj(torch.stack(out)[None])
        logits.append(model.lm_head(model.model.norm(after + layer.mlp(layer.post_attention_layernorm(after)))))
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("page_cache", ["tova"], indirect=True)
@pytest.mark.parametrize("bounds", [[(0, 40), *((i, i + 1) for i in range(40, 60))], [(0, 7), (7, 30), (30, 31), (31, 60)]], ids=["token by token", "in chunks"])
def test_tova_keeps_what_the_slow_formula_keeps(page_cache, bounds):
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_hidden_layers": 1})).eval()
    for weight in model.parameters():
        weight.data.mul_(6 if weight.dim() > 1 else 1)
    ids, cache = token_ids(1, 60), kvcache.create("tova", model, budget=16)
    with torch.no_grad():
        found = torch.cat([kvcache.feed(model, ids[:, a:b], cache) for a, b in bounds], dim=1)
    torch.testing.assert_close(found, slow_tova(model, ids, bounds, 16), atol=2e-4, rtol=1e-4)
    assert cache.held_length() == 16 and cache.get_seq_length() == 60
    assert kvcache.predict_memory("tova", model, 60, budget=16).total == kvcache.measure_memory(cache).total


@pytest.mark.parametrize("page_cache", ["tova"], indirect=True)
def test_a_layer_that_needs_the_query_refuses_attention_that_goes_around_it(page_cache):
    model, ids = model_of("llama"), token_ids(1, 30)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match="TovaLayer chooses by the query what it keeps.*attn_implementation='sdpa'"):
            kvcache.feed(model, ids, kvcache.create("tova", model, budget=16))
    finally:
        model.set_attn_implementation(before)


@pytest.mark.parametrize("page_cache", ["tova"], indirect=True)
def test_rows_padded_on_the_left_are_refused(page_cache):
    model, ids = model_of("llama"), token_ids(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with pytest.raises(ValueError, match="left-padded"):
        kvcache.feed(model, ids, kvcache.create("tova", model, budget=16), attention_mask=mask)
