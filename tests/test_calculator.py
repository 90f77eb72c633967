"""The calculator: the same bytes as measured caches and predict_memory, what fits checked against plain arithmetic, strangers' configs refused in sentences."""

import csv
import io
import json

import pytest
import torch
from tiny_chat import tiny
from transformers import LlamaConfig

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache import catalog
from kvcache.chat import models
from kvcache.chat.models import hub as hub_models
from kvcache.measure.calculator import GPUS, HEADS, Calculation, Device, Workload, calculate, count_weights, to_csv
from kvcache.memory import measure_memory
from ui import calculator, calculator_view

CONFIG = dict(model_type="llama", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96, vocab_size=400,
              max_position_embeddings=2048)
SMALL = Device("small", 12_000_000)


def filled(name, config, tokens, **parameters):
    """A cache that was given so many tokens, in float32."""
    cache = catalog.create(name, config, **parameters)
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(1, 2, tokens, 16), torch.randn(1, 2, tokens, 16), layer)  # [B, H, T, D]
    return cache


@pytest.mark.parametrize("name, parameters", [("dynamic", {}), ("sliding_window", {"window_length": 64}), ("sink", {"window_length": 64}), ("quantized", {"nbits": 2, "residual_length": 32})])
def test_bytes_are_those_of_a_cache_that_was_filled(name, parameters):
    config = LlamaConfig(**CONFIG)
    found = calculate(config, Workload(600, dtype=torch.float32), {name: parameters})
    cost = next(cost for cost in found.costs if cost.name == name)
    assert cost.memory.by_kind() == measure_memory(filled(name, config, 600, **parameters)).by_kind()
    assert cost.memory.total == cost.on_accelerator


@pytest.mark.parametrize("tokens", [1, 777, 5000])
def test_every_cache_costs_at_any_length_what_the_catalog_predicts(tokens):
    config = LlamaConfig(**CONFIG)
    for cost in calculate(config).costs:
        capacity = {"max_cache_len": max(tokens, 16)} if "static" in cost.name else {}
        assert cost.at(tokens)[0] == catalog.predict_memory(cost.name, config, tokens, dtype=torch.bfloat16, **capacity)


def test_weights_are_as_many_as_the_loaded_model_has():
    loaded = tiny("llama")
    assert count_weights(loaded.config) == sum(parameter.numel() for parameter in loaded.model.parameters())


def test_a_cache_that_reserves_is_given_the_asked_length_and_no_more_than_it_can_have():
    found = calculate(LlamaConfig(**CONFIG), Workload(1000))
    static = next(cost for cost in found.costs if cost.name == "static")
    assert static.memory.by_kind()["reserved"] == 0 and static.label == "Static 1000"
    assert found.fit(static, GPUS[-1]).tokens == 131_072  # its parameter's maximum


def test_of_an_offloaded_cache_two_layers_stay_on_an_accelerator_and_all_on_a_computer():
    config = LlamaConfig(**CONFIG | {"num_hidden_layers": 8})
    cost = next(cost for cost in calculate(config).costs if cost.name == "offloaded")
    assert cost.on_accelerator == cost.memory.total // 4
    assert cost.nbytes_on(Device("here", 1, is_accelerator=False)) == cost.memory.total


@pytest.mark.parametrize("users", [1, 7])
@pytest.mark.parametrize("name", ["dynamic", "static", "offloaded", "quantized"])
def test_what_fits_fits_and_a_little_more_does_not(name, users):
    found = calculate(LlamaConfig(**CONFIG), Workload(500, users))
    cost = next(cost for cost in found.costs if cost.name == name)
    fit, room = found.fit(cost, SMALL), int(SMALL.nbytes * 0.9) - found.weights_nbytes
    assert fit.users * cost.on_accelerator <= room < (fit.users + 1) * cost.on_accelerator
    assert users * cost.at(fit.tokens)[1] <= room < users * cost.at(int(fit.tokens * 1.3))[1]  # buffers grow by a quarter at once


def test_windows_fit_at_any_length_and_nothing_fits_beside_weights_that_do_not():
    found = calculate(LlamaConfig(**CONFIG))
    window = next(cost for cost in found.costs if cost.name == "sliding_window")
    assert found.fit(window, SMALL).tokens is None
    tight = Device("tight", 100_000)
    assert found.room(tight) < 0 and found.fit(window, tight).users == 0 and found.fit(window, tight).tokens == 0


def test_the_csv_has_a_row_for_each_cache_and_device_and_its_kinds_add_up():
    found = calculate(LlamaConfig(**CONFIG), Workload(users=3))
    rows = list(csv.DictReader(io.StringIO(to_csv(found, GPUS))))
    assert len(rows) == len(found.costs) * len(GPUS) and tuple(rows[0]) == HEADS
    for row in rows:
        assert sum(int(row[kind]) for kind in catalog.LayerMemory().as_dict()) == int(row["nbytes"]) == 3 * int(row["nbytes_a_user"])


@pytest.mark.parametrize("changes, words", [({"tokens": 0}, "tokens must be"), ({"users": 1.5}, "users must be"), ({"weight_bits": 5}, "weight_bits must be one of"),
                                            ({"kept_free": 1}, "kept_free must be a share")])
def test_a_workload_that_can_not_be_is_a_sentence(changes, words):
    with pytest.raises(ValueError, match=words):
        calculate(LlamaConfig(**CONFIG), Workload(**changes))


# -- configs of strangers ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, words", [
    ("", "That is no JSON"), ("[" * 100_000, "That is no JSON"), ("[]", "names a model_type"), ('{"model_type": ["llama"]}', "names a model_type"),
    ('{"model_type": "no_such_model"}', "names a model_type"), (json.dumps(CONFIG | {"num_hidden_layers": 10**8}), "num_hidden_layers = 100000000"),
    (json.dumps(CONFIG | {"text_config": {"num_experts": 10**6}}), "num_experts = 1000000"), (json.dumps(CONFIG | {"hidden_size": "wide"}), "hidden_size"),
    (json.dumps(CONFIG | {"layer_types": ["magic"]}), "can't be|cannot be|does not know"), ("x" * 500_000, "400,000 characters at most"),
])
def test_a_config_that_can_not_be_is_a_sentence(text, words):
    with pytest.raises(models.ModelError, match=words):
        models.config_from_text(text)


@pytest.mark.parametrize("changes, words", [({"num_hidden_layers": 0}, "no layers"), ({"hidden_size": 2**31, "intermediate_size": 2**31, "num_attention_heads": 1}, "no llama can be made")])
def test_a_model_that_can_not_be_made_is_a_sentence(changes, words):
    with pytest.raises(ValueError, match=words):
        calculate(models.config_from_text(json.dumps(CONFIG | changes)))


def test_code_that_a_config_names_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text("raise SystemExit('it ran')")
    config = models.config_from_text(json.dumps(CONFIG | {"auto_map": {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}}))
    assert type(config) is LlamaConfig and calculate(config).weights == count_weights(LlamaConfig(**CONFIG))


def test_a_bundled_models_config_is_read_by_name_and_a_hubs_that_is_not_here_says_so(monkeypatch):
    assert models.config_named(models.DEFAULT).model_type == "llama"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(models.ModelError, match="is not on this computer"):
        models.config_named("somebody/some-model")


def test_a_config_on_this_disk_is_read_without_the_network_but_not_for_strangers(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr("kvcache.chat.models.config_only.on_disk_file", lambda choice, name: tmp_path / name)
    monkeypatch.setattr("kvcache.chat.models.config_only.ask_hub", lambda choice: (_ for _ in ()).throw(models.ModelError("asked the hub")))
    assert models.config_named("somebody/private").hidden_size == 64
    monkeypatch.setenv("SPACE_ID", "a/space")
    with pytest.raises(models.ModelError, match="asked the hub"):
        models.config_named("somebody/private")


def test_one_file_of_a_hub_model_is_found_in_the_hubs_cache_alone():
    assert hub_models.on_disk_file(models.find_choice("somebody/some-model"), "config.json") is None


# -- the page ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def tab():
    import gradio as gr

    with gr.Blocks():
        return calculator.calculator_tab([(choice.label, choice.id) for choice in models.CHOICES], models.DEFAULT)


def typed(tab, **changes):
    return {widget: changes.get(name, widget.value) for name, widget in ({f"{cache}.{parameter}": widget for (cache, parameter), widget in tab.parameters.items()}
            | {name: widget for name, widget in vars(tab).items() if name != "parameters"}).items()}


def test_the_tab_fills_tables_chart_and_file(tab):
    shown = calculator.calculate(tab, typed(tab, tokens=1000, users=3, device="T4", **{"sink.window_length": 64, "quantized.nbits": 2}))
    assert shown[tab.notice] == "" and "Sink 4 + 60" in shown[tab.table] and "Native 2-bit" in shown[tab.table] and "3 users" in shown[tab.table]
    bars = json.loads(shown[tab.chart])["figure"]["data"]
    found = calculate(models.config_named(models.DEFAULT), Workload(1000, 3), {"sink": {"window_length": 64}, "quantized": {"nbits": 2}})
    assert [sum(each) for each in zip(*(trace["x"] for trace in bars if trace["type"] == "bar"))] == [3 * cost.memory.total for cost in found.costs]
    assert all(device.name in shown[tab.devices] for device in GPUS) and "data:text/csv" in shown[tab.download]


def test_a_pasted_config_goes_before_the_model_and_nothing_of_it_is_taken_for_html(tab):
    shown = calculator.calculate(tab, typed(tab, config=json.dumps(CONFIG)))
    assert "The pasted llama" in shown[tab.summary] and f"{count_weights(LlamaConfig(**CONFIG)):,}" in shown[tab.summary]
    shown = calculator.calculate(tab, typed(tab, config='{"model_type": "<img src=x>"}'))
    assert "&lt;img" in shown[tab.notice] and "<img" not in shown[tab.notice] and shown[tab.table] == "" and shown[tab.chart] is None


@pytest.mark.parametrize("changes, words", [({"tokens": None}, "tokens"), ({"users": -1}, "users"), ({"sink.window_length": 4}, "does not suit|do not suit")])
def test_what_was_typed_wrong_is_said(tab, changes, words):
    shown = calculator.calculate(tab, typed(tab, **changes))
    assert any(word in shown[tab.notice] + shown[tab.table] for word in words.split("|"))


def test_a_device_that_the_weights_fill_is_said_to_be_full():
    found = Calculation(Workload(), 10**11, calculate(LlamaConfig(**CONFIG)).costs, {})
    assert "The weights alone do not fit" in calculator_view.summary_html("A", found, GPUS[0])
    assert "kv-too-much" in calculator_view.table_html(found, GPUS[0])
