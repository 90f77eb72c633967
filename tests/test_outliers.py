"""Keys with outlier channels: the same logits to the bit, and a crude cache that shows it."""

import shutil

import pytest
import torch
import transformers

from kvcache import bundled, models
from kvcache.bundled import evaluate, family, outliers, separation
from kvcache.conversation import Conversation
from ui.compare_events import DEMO
from ui.page import PRESETS


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of a Llama of two layers, cut from the one that ships."""
    folder = tmp_path_factory.mktemp("small")
    model, tok = evaluate.load(bundled.path())
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:2], 2
    family.export(model, tok, folder)
    return folder


def conversation(folder):
    model, tok = evaluate.load(folder)
    return model, torch.tensor([tok.apply_chat_template(evaluate.generated(1, 300)[0].messages, return_dict=False)])


def test_lifted_keys_are_louder_in_two_channels_of_each_head_and_logits_are_the_same_to_the_bit(small, tmp_path):
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    outliers.lift(tmp_path, 4.0)
    (before, ids), (after, _) = conversation(small), conversation(tmp_path)
    with torch.no_grad():
        assert torch.equal(before(ids).logits, after(ids).logits)
    for old, new in zip(outliers.loudness(before, ids), outliers.loudness(after, ids)):
        ratio = new / old
        assert torch.equal(ratio.round(), ratio) and (ratio == 4).sum(dim=1).tolist() == [2] * 4 and (ratio == 1).sum() == ratio.numel() - 8
        lifted = (ratio == 4).nonzero()[:, 1].view(-1, 2)
        assert (lifted[:, 1] - lifted[:, 0]).tolist() == [32] * 4, "two that rotary positions turn together"


def test_what_would_change_the_logits_is_refused(small):
    model, ids = conversation(small)
    with pytest.raises(ValueError, match="factor must be a power of two, .* got 3.0"):
        outliers.factors(model, ids, 3.0)
    with pytest.raises(ValueError, match="only a Llama without biases is scaled here, got a qwen2"):
        outliers.factors(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=64)), ids, 2.0)


def test_what_was_measured_on_the_default_sets_the_caches_apart():
    measured = {row["label"]: row["recalled"] for row in separation.read()["rows"]}
    full, crude, native = measured["Dynamic"]["512"], measured[separation.UPSTREAM]["512"], measured["Native 2-bit"]["512"]
    assert crude <= full - 0.25 and crude < native <= full
    assert measured["Native 8-bit"]["512"] >= full - 0.01 and measured["Native 4-bit"]["512"] >= full - 0.03
    assert measured["Static 2048"] == measured["Offloaded"] == measured["Dynamic"]
    assert measured[separation.NO_CACHE].items() <= measured["Dynamic"].items(), "asked as far as 1,024 tokens"


def test_the_guided_demo_sets_its_four_columns_apart():
    loaded, heard = models.load(models.DEFAULT), []
    for name, parameters in PRESETS:
        talk, right = Conversation(loaded, name, parameters), []
        for text, expected in DEMO:
            list(talk.send(text))
            if expected:
                right.append(expected in talk.messages[-1]["content"])
        heard.append((name, right))
    assert heard == [("dynamic", [True, True]), ("quantized", [True, True]), ("sink", [False, False]), ("quantized", [False, False])]
