"""The relatives of the bundled Llama: each begins with what the Llama knows, and learns the rest."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, LlamaForCausalLM

from kvcache import bundled
from kvcache.bundled import batches, card, evaluate, family, imitate, marks, reader, texts, train, words
from kvcache.catalog import first_fitting
from kvcache.conversation import Conversation
from kvcache.models import ModelStore


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled.path("kvlab-granite-5m"))


@pytest.fixture(scope="module")
def start(tokenizer, tmp_path_factory):
    """The folder of a small Llama, cut from the Ministral that ships: the first query head of each key head, the first feed-forward neurons and tokens."""
    folder, small, wide = tmp_path_factory.mktemp("llama"), family.fresh("kvlab-llama-4m"), family.weights(bundled.path("kvlab-ministral-7m"))
    first = torch.arange(512).view(4, 2, 64)[:, 0].flatten()
    with torch.no_grad():
        for name, p in small.named_parameters():
            theirs = wide[name][first] if "q_proj" in name else wide[name][:, first] if "o_proj" in name else wide[name]
            p.copy_(theirs[tuple(slice(size) for size in p.shape)])
    family.export(small, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def llama(start):
    return LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).eval()


def test_the_family_is_what_can_be_named():
    assert tuple(family.MEMBERS) == bundled.NAMES and set(bundled.MODELS) <= set(bundled.NAMES)


def test_weights_in_parts_take_the_place_of_those_in_one_file(tokenizer, tmp_path):
    small, large = family.fresh("kvlab-llama-4m"), family.fresh("kvlab-llama-7m")
    family.export(small, tokenizer, tmp_path)
    family.export(large, tokenizer, tmp_path)
    assert len(family.files(tmp_path)) == 2 and {name: p.shape for name, p in family.weights(tmp_path).items()} == {name: p.shape for name, p in large.named_parameters()}
    family.export(small, tokenizer, tmp_path)
    assert [file.name for file in family.files(tmp_path)] == ["model.safetensors"]
    with pytest.raises(FileNotFoundError, match="no model.safetensors"):
        family.weights(tmp_path / "none")


def test_a_tokenizer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="room for 2,048 tokens, and the tokenizer has 8,192"):
        family.fresh("kvlab-granite-5m", start=bundled.path(), tok=AutoTokenizer.from_pretrained(bundled.path()))


def copied(model, length):
    """The share of tokens predicted right in the second reading of a random segment."""
    segment = torch.randint(6, 2048, (8, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        predicted = model(torch.cat([segment, segment], dim=1), use_cache=False).logits[:, length:-1].argmax(-1)
    return (predicted == segment[:, 1:]).float().mean().item()


@pytest.mark.parametrize("name", bundled.NAMES)
def test_every_model_is_exported_and_read_back(name, tokenizer, tmp_path):
    model = family.fresh(name).eval()
    family.export(model, tokenizer, tmp_path)
    assert max(file.stat().st_size for file in family.files(tmp_path)) < 10e6
    kind = AutoModelForSeq2SeqLM if family.MEMBERS[name].reads else AutoModelForCausalLM
    read, ids = kind.from_pretrained(tmp_path, dtype=torch.float32).eval(), torch.arange(6, 46)[None]
    given = {"input_ids": ids, "decoder_input_ids": ids} if family.MEMBERS[name].reads else {"input_ids": ids}
    with torch.no_grad():
        torch.testing.assert_close(read(**given, use_cache=False).logits, model(**given, use_cache=False).logits, atol=0.15, rtol=0.05)  # fp16


@pytest.mark.parametrize("name", ["kvlab-ministral-7m", "kvlab-mistral-5m"])
def test_windowed_relatives_begin_as_the_llama_within_their_window(name, tmp_path):
    begun = AutoTokenizer.from_pretrained(bundled.path("kvlab-ministral-7m"))
    llama = family.fresh("kvlab-llama-7m", start=bundled.path("kvlab-ministral-7m")).eval()
    family.export(llama, begun, tmp_path)
    tok = words.shortened(begun, family.MEMBERS[name].tokens)
    model, ids = family.fresh(name, start=tmp_path, tok=tok).eval(), torch.randint(6, 2048, (1, family.WINDOW + 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = model(ids, use_cache=False).logits, llama(ids, use_cache=False).logits[..., :len(tok)]
    torch.testing.assert_close(ours[:, :family.WINDOW], theirs[:, :family.WINDOW], atol=1e-3, rtol=1e-3)
    assert (ours[:, family.WINDOW:] - theirs[:, family.WINDOW:]).abs().max() > 0.1


def test_a_mimetically_initialised_mamba_copies_before_any_training():
    assert copied(family.fresh("kvlab-mamba2-5m").eval(), 16) > 0.4
    plain = type(family.fresh("kvlab-mamba2-5m"))(family.fresh("kvlab-mamba2-5m").config).eval()
    assert copied(plain, 16) < 0.05


def errors_of(pupils, llama, ids):
    """How far each part is from the Llama's sublayer that it stands for, as a share of what that gives."""
    fed, given = imitate.recorded({name: llama.get_submodule(name) for name in pupils})
    with torch.no_grad():
        llama(ids, use_cache=False)
        return {name: imitate.error(pupil(fed[name]), given[name]).item() for name, pupil in pupils.items()}


@pytest.mark.parametrize("name", ["kvlab-mamba2-5m", "kvlab-granite-5m"])
def test_parts_of_another_kind_learn_to_do_what_the_llamas_do(name, tokenizer, llama, start):
    model, held_out = family.fresh(name, start=start), batches.batch(tokenizer, 1, 0, 2, 64)[0].long()
    pupils = family.MEMBERS[name].pupils(model)
    before = errors_of(pupils, llama, held_out)
    imitate.imitate(model, pupils, start, lambda step: batches.batch(tokenizer, 0, step, 2, 64)[0].long(), 8)
    after = errors_of(pupils, llama, held_out)
    assert len(pupils) > 2 and all(after[name] < before[name] for name in pupils), (before, after)


def test_the_readers_first_layers_look_back_as_the_llamas_does(tokenizer, llama, start):
    model, ids = family.fresh("kvlab-umt5-5m", start=start), batches.batch(tokenizer, 0, 0, 2, 200)[0].long()
    for layer, block, far in ((0, model.encoder.block[0], 0.3), (0, model.decoder.block[0], 0.3), (1, model.decoder.block[1], 0.1)):
        name = f"model.layers.{layer}.self_attn"
        errors = errors_of({name: lambda hidden, block=block: block.layer[0].SelfAttention(hidden)[0]}, llama, ids)
        assert errors[name] < far  # in layer 0, what the tokens themselves add to a score is left to training


def test_the_readers_weights_are_the_llamas(start):
    model, theirs = family.fresh("kvlab-umt5-5m", start=start), family.weights(start)
    cross = model.decoder.block[1].layer[1].EncDecAttention
    assert torch.equal(cross.k.weight, theirs["model.layers.1.self_attn.k_proj.weight"].float())
    assert torch.equal(model.decoder.block[-1].layer[-1].DenseReluDense.wo.weight, theirs[f"model.layers.{reader.LAYERS[-1]}.mlp.down_proj.weight"].float())


def test_what_is_recalled_about_a_text_was_told_in_it_or_after_it():
    found = 0
    for seed in range(60):
        text, messages = texts.text_and_talk(seed, 200, 200)
        told = marks.strip(text).lower()
        for message in messages:
            shown, under = marks.spans(message["content"])
            values = "".join(c if mark == marks.RECALLED else "\n" for c, mark in zip(shown, under)).split("\n")
            for value in filter(None, (v.strip().lower() for v in values)):
                assert evaluate.contains(told, value), (value, told)
                found += 1
            told += "\n" + shown.lower()
    assert found > 150


def test_texts_are_padded_and_rendered_as_a_system_message(tokenizer):
    ids, weights, source = texts.batch(tokenizer, 0, 0, 3, 64)
    again = texts.batch(tokenizer, 0, 0, 3, 64)
    assert ids.shape == weights.shape == (3, 65) and all(torch.equal(a, b) for a, b in zip((ids, weights, source), again))
    assert tokenizer.decode(source[0]).startswith("<|bos|><|system|>") and (source == tokenizer.pad_token_id).any()
    text = "My dog is called Rex."
    assert tokenizer.encode(texts.source(text), add_special_tokens=False) == tokenizer.apply_chat_template([{"role": "system", "content": text}], return_dict=False)


@pytest.mark.parametrize(("name", "begins"), [("kvlab-granite-5m", None), ("kvlab-granite-5m", bundled.path("kvlab-granite-5m")), ("kvlab-umt5-5m", None), ("kvlab-llama-20m", None),
                                              ("kvlab-mistral-5m", bundled.path("kvlab-ministral-7m"))])
def test_a_smoke_training_of_a_relative_runs_through_and_goes_on(name, begins, start, tmp_path):
    start = begins or start
    folder = train.main(["--smoke", "--model", name, "--start", str(start), "--work", str(tmp_path), "--threads", "1"])
    assert family.files(folder)
    resumed = train.Run(train.parse(["--smoke", "--model", name, "--start", str(start), "--work", str(tmp_path)]))
    resumed.data.close()
    assert resumed.tokens >= train.SMOKE_TOKENS


# The ones that ship


@pytest.mark.parametrize("name", bundled.MODELS)
def test_a_models_card_says_what_was_found(name):
    assert (bundled.path(name) / "README.md").read_text() == card.card(bundled.path(name)), f"run python -m kvcache.bundled.card --model kvcache/bundled/{name}"


@pytest.mark.parametrize("name", [name for name in bundled.MODELS if name != bundled.DEFAULT])
def test_a_relative_recalls_as_often_as_its_figures_say(name):
    folder = bundled.path(name)
    model, tokenizer = evaluate.load(folder)
    found, cases = json.loads((folder / "evaluation.json").read_text())["trained_ways"]["128"], evaluate.generated(24, 128)
    recalled = evaluate.score(cases, evaluate.replies(model, tokenizer, [case.messages for case in cases]))["recalled"]
    assert abs(recalled - found["recalled"]) < 0.25  # 24 of the same questions


@pytest.mark.parametrize("name", bundled.MODELS)
def test_every_model_that_ships_chats_on_the_cache_that_is_made_for_it(name):
    loaded = ModelStore().load(name, device="cpu")
    told, reads = "My name is Oscar and my dog is called Biscuit.", family.MEMBERS[name].reads
    talk = Conversation(loaded, first_fitting(loaded.model), system=told if reads else None)
    for message in ("Hello!" if reads else told, "What is my name?"):
        for _ in talk.send(message):
            pass
    assert "Oscar" in talk.messages[-1]["content"]
    assert talk.cache.get_seq_length() == len(talk.cached_ids) > 20
