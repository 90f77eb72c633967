"""Tries the wheel where only torch, transformers, safetensors and numpy are beside it: `python tests/try_wheel.py kvcache-*.whl`, which must be installed."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import kvcache
from kvcache import bundled, extras
from kvcache.bundled import questions
from kvcache.measure.quality import tasks
from kvcache.measure.speed import figures, results

OPTIONAL = ("numba", "psutil", "accelerate", "gradio", "plotly", "hqq", "optimum")
SECONDS, BYTES = 0.35, 1_000_000  # that `import kvcache` may take beside transformers' part, and the wheel
IMPORTED = f"""
import time
from transformers import PreTrainedConfig, cache_utils, masking_utils
start = time.process_time()
import sys, kvcache
print(time.process_time() - start, *(name for name in {OPTIONAL} if name in sys.modules))
"""
PROMPT, NEW = 300, 8
EXACT = {"dynamic": {}, "static": {"max_cache_len": 320}, "sliding_window": {"window_length": 320}, "sink": {"window_length": 320}}


def the_wheel_is_small_and_typed_and_has_no_weights(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "kvcache/py.typed" in names and not [name for name in names if name.endswith((".safetensors", "tokenizer.json"))]
    assert wheel.stat().st_size <= BYTES, f"the wheel has {wheel.stat().st_size:,} bytes"


def kvcache_is_the_installed_one() -> None:
    assert "site-packages" in kvcache.__file__, kvcache.__file__


def importing_is_quick_and_brings_nothing_optional() -> None:
    runs = [subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    assert not runs[0][1:], runs[0][1:]
    seconds = min(float(run[0]) for run in runs)
    print(f"import kvcache: {seconds:.2f} s beside transformers' part")
    assert seconds <= SECONDS


def generation_is_the_same_with_every_exact_cache(model: LlamaForCausalLM, ids: torch.Tensor) -> None:
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False, use_cache=False)
    for name, parameters in EXACT.items():
        found = kvcache.generate(model, ids, cache_implementation=name, cache_config=parameters, max_new_tokens=NEW, do_sample=False)
        assert torch.equal(found, expected), name


def eight_bits_come_close_in_fewer_bytes_and_go_through_a_file(model: LlamaForCausalLM, ids: torch.Tensor) -> None:
    full, rounded = (kvcache.create(name, model, **given) for name, given in (("dynamic", {}), ("quantized", {"nbits": 8, "residual_length": 0})))
    for cache in (full, rounded):
        kvcache.feed(model, ids, cache)
    assert kvcache.measure_memory(rounded).total < kvcache.measure_memory(full).total
    with tempfile.TemporaryDirectory() as folder:
        rounded.save(Path(folder) / "cache.safetensors", model)
        loaded = kvcache.load_cache(Path(folder) / "cache.safetensors", model)
    token = ids[:, :1]
    expected, found, again = (kvcache.feed(model, token, cache) for cache in (full, rounded, loaded))
    assert torch.equal(found, again)
    assert (found - expected).norm() < 0.02 * expected.norm()  # 8 bits err by less than 1 % of these logits


def what_is_missing_is_said_to_be_missing(model: LlamaForCausalLM) -> None:
    says("kvcache[quanto]", lambda: kvcache.create("quantized", model, backend="quanto"))
    says("kvcache[cpu]", lambda: kvcache.create("quantized", model, attention="fused"))
    says("kvcache[playground]", lambda: figures.html(results.Report()))
    says(f"{bundled.DEFAULT} is not here", bundled.path)
    says("questions to the bundled models are not here", lambda: questions.cases("hand_written", 155))
    says("'facts' can't be asked", lambda: tasks.named(["facts"]))
    assert extras.free_memory() is None


def says(words: str, do) -> None:
    try:
        do()
    except Exception as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing said {words}")


def main(wheel: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(3, 97, (1, PROMPT))
    model.generation_config.eos_token_id = None
    the_wheel_is_small_and_typed_and_has_no_weights(Path(wheel))
    kvcache_is_the_installed_one()
    importing_is_quick_and_brings_nothing_optional()
    with torch.no_grad():
        generation_is_the_same_with_every_exact_cache(model, ids)
        eight_bits_come_close_in_fewer_bytes_and_go_through_a_file(model, ids)
    what_is_missing_is_said_to_be_missing(model)
    print(f"kvcache {kvcache.__version__} works from its wheel alone")


if __name__ == "__main__":
    main(sys.argv[1])
