"""The bundled model: its data are reproducible and split, its tokenizer loses nothing, and it remembers what it is told."""

import re
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvcache import bundled
from kvcache.bundled import (
    batches,
    card,
    dialogues,
    evaluate,
    grammar,
    hand_written,
    marks,
    mimetic,
    model,
    muon,
    phrases,
    separation,
    train,
    values,
)

FOLDER = bundled.path()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def shipped():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


# Data


def test_the_same_seed_makes_the_same_conversation():
    assert dialogues.conversation(3, 400) == dialogues.conversation(3, 400)
    assert dialogues.conversation(3, 400) != dialogues.conversation(4, 400)


def test_users_and_assistant_take_turns():
    for seed in range(20):
        roles = [m["role"] for m in dialogues.conversation(seed, 300) if m["role"] != "system"]
        assert roles[::2] == ["user"] * len(roles[::2]) and roles[1::2] == ["assistant"] * len(roles[1::2])


def test_training_never_tells_held_out_values_and_tests_tell_nothing_else():
    rng = Random(0)
    for kind in set(values.MAKERS) - values.CLOSED:
        assert not any(values.held_out(values.make(rng, kind)) for _ in range(30))
        assert all(values.held_out(values.make(rng, kind, held=True)) for _ in range(3))


def test_questions_for_the_tests_have_values_training_never_tells():
    seen = {fact.value for seed in range(300) for fact in [dialogues.new_fact(Random(seed), set())]}
    asked = {dialogues.question_at(seed, 64)[1].value for seed in range(60)}
    assert not seen & asked


def test_ways_of_speaking_are_split():
    rng = Random(0)
    tells = phrases.KINDS["name"].tells
    trained = {phrases.choose(rng, tells) for _ in range(2000)}
    held = {phrases.choose(rng, tells, held=True) for _ in range(50)}
    assert len(trained) > 150 and not trained & held


def test_recalled_values_were_said_before():
    for seed in range(30):
        said = ""
        for message in dialogues.conversation(seed, 500):
            found = re.findall(f"{marks.RECALLED}(.*?){marks.CLOSE}", message["content"])
            assert all(value in said for value in found)
            said += marks.strip(message["content"]) + "\n"


def test_answers_and_refusals_mark_the_words_that_decide_between_them():
    replies = {m["content"] for seed in range(40) for m in dialogues.conversation(seed, 500)}
    assert any(r.startswith(f"{marks.REFUSING}You have{marks.CLOSE} not told me") for r in replies)
    assert any(re.match(f"{marks.DECISIVE}Your name{marks.CLOSE} is {marks.RECALLED}", r) for r in replies)
    assert marks.strip(marks.decisive(marks.recalled("Bo") + " it is")) == "Bo it is"


def test_some_questions_ask_for_something_never_told():
    replies = [m["content"] for seed in range(150) for m in dialogues.conversation(seed, 500) if m["role"] == "assistant"]
    recalls, declines = sum(marks.RECALLED in r for r in replies), sum("not told me" in r for r in replies)
    assert 0.08 < declines / (declines + recalls) < 0.28


def test_the_grammar_expands_nested_choices():
    readings = {grammar.expand(Random(i), "{a|b{c|d}|}e") for i in range(60)}
    assert readings == {"ae", "bce", "bde", "e"}
    with pytest.raises(ValueError, match="unbalanced"):
        grammar.parse("{a|b")


def test_no_generated_conversation_holds_a_template_character():
    for seed in range(60):
        assert not any(c in m["content"] for m in dialogues.conversation(seed, 400) for c in "{}$@|")


@pytest.mark.parametrize("pairs", [hand_written.PAIRS, hand_written.VERDICT_PAIRS])
def test_hand_written_pairs_are_at_least_a_hundred_and_consistent(pairs):
    assert len(pairs) >= 100
    for told, asked, expected in pairs:
        assert evaluate.contains(told, expected) and not evaluate.contains(asked, expected), told


# Tokenizer


@pytest.mark.parametrize("text", ["Hello Bram, 3-9-5!", " two  spaces ", "héllo wörld 你好 🎉\n\ttab", "", "A7X 395 3 9 5", "\u200bnull\x00", "don't"])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens(tokenizer):
    assert [t.strip("Ġ") for t in tokenizer.tokenize(" 4172")] == list("4172")


def test_a_shorter_conversation_is_a_prefix_of_a_longer_one(tokenizer):
    messages = evaluate.clean(dialogues.conversation(5, 400))
    rendered = [tokenizer.apply_chat_template(messages[:n], return_dict=False) for n in range(1, len(messages) + 1)]
    assert all(long[:len(short)] == short and len(long) > len(short) for short, long in pairwise(rendered))
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
    assert messages[-1]["role"] == "assistant" and rendered[-1][:len(prompt)] == prompt


def test_training_text_is_what_the_template_renders(tokenizer):
    messages = dialogues.conversation(6, 300)
    text, weights = batches.weighted(messages)
    assert text == tokenizer.apply_chat_template(evaluate.clean(messages), tokenize=False) and len(weights) == len(text)


# Training


def test_batches_are_a_function_of_seed_and_number(tokenizer):
    ids, weights = batches.batch(tokenizer, 0, 1, 2, 96)
    again, _ = batches.batch(tokenizer, 0, 1, 2, 96)
    assert ids.shape == weights.shape == (2, 97) and torch.equal(ids, again) and weights.max() <= batches.RECALLED


def test_muon_steps_are_nearly_orthogonal():
    update = muon.orthogonal(torch.randn(2, 24, 48, generator=torch.Generator().manual_seed(0)))
    singular = torch.linalg.svdvals(update)
    assert singular.min() > 0.5 and singular.max() < 1.4  # five Newton-Schulz steps aim at 1 within about 0.3


def test_a_fresh_model_already_copies():
    """That is what mimetic initialisation is for: plain initialisation gets 1 in 2,000 right."""
    fresh, generator = model.fresh(seed=0), torch.Generator().manual_seed(1)
    ids = torch.randint(6, 2048, (4, 40), generator=generator).repeat(1, 2)
    with torch.inference_mode():
        guess = fresh(ids[:, :-1]).logits.argmax(-1)
    assert (guess == ids[:, 1:])[:, 40:].float().mean() > 0.1
    assert mimetic.frequencies(fresh).shape == (32,)


def test_the_schedule_ends_at_zero():
    assert train.rate_at(0.0) == train.rate_at(train.FLAT - 0.01) == 1.0 and train.rate_at(1.0) == 0.0
    assert abs(sum(stage.share for stage in train.CURRICULUM) - 1) < 1e-9
    assert [train.stage_at(s).length for s in (0, 0.2, 0.5, 0.7, 0.9, 1.0)] == [128, 256, 512, 1024, 2048, 2048]


def test_training_from_nothing_stops_resumes_and_exports(tmp_path):
    folder = train.main(["--smoke", "--work", str(tmp_path), "--threads", "1"])
    made = AutoModelForCausalLM.from_pretrained(folder)
    assert made.dtype == torch.float16 and (tmp_path / "checkpoint.pt").exists()
    resumed = train.Run(train.parse(["--smoke", "--work", str(tmp_path)]))
    resumed.data.close()
    assert resumed.step > 0 and resumed.seconds >= resumed.total


# The model that ships


def test_no_bundled_file_is_over_ten_megabytes():
    files = [f for f in Path(bundled.__file__).parent.rglob("*") if f.is_file()]
    assert (FOLDER / "model.safetensors") in files
    assert max(f.stat().st_size for f in files) < 10_000_000


def test_unknown_bundled_models_are_named():
    with pytest.raises(KeyError, match="kvlab-llama-4m"):
        bundled.path("nothing")


def test_the_model_says_what_it_was_told(shipped, tokenizer):
    talk = [{"role": "user", "content": "Hi, my name is Bram."}, {"role": "assistant", "content": "Nice to meet you."}, {"role": "user", "content": "What is my name?"}]
    assert "Bram" in evaluate.replies(shipped, tokenizer, [talk])[0]


def test_the_model_declines_what_it_was_never_told(shipped, tokenizer):
    talk = [{"role": "user", "content": "What is my name?"}]
    assert evaluate.DECLINE in evaluate.replies(shipped, tokenizer, [talk])[0]


def test_recall_right_after_the_telling_of_values_never_seen_in_training(shipped, tokenizer):
    """A floor: 190 of 200 were measured (see the model card)."""
    cases = evaluate.generated(40, 128)
    assert evaluate.score(cases, evaluate.replies(shipped, tokenizer, [c.messages for c in cases]))["recalled"] >= 0.85


def test_what_each_cache_forgets_is_measured_with_the_caches_themselves(shipped, tokenizer):
    caches = (("dynamic", {}), ("static", {"max_cache_len": 256}), ("sliding_window", {"window_length": 32}), ("sink", {"window_length": 32}))
    rows = {row.label: row for row in separation.measure(shipped, tokenizer, 8, (100,), caches, tell=lambda line: None)}
    assert list(rows) == ["Dynamic", "Static 256", "Window 32", "Sink 4 + 28", separation.NO_CACHE, separation.NEVER_TOLD]
    assert rows["Dynamic"].recalled["100"] >= 0.75
    assert all(rows[label].same["100"] == 1 for label in ("Static 256", separation.NO_CACHE))
    assert all(rows[label].recalled["100"] <= 0.25 for label in ("Window 32", "Sink 4 + 28", separation.NEVER_TOLD))


def test_the_card_and_the_committed_figures_agree():
    card_text = (FOLDER / "README.md").read_text()
    assert card_text == card.card(FOLDER)


def test_recall_at_512_tokens_of_values_never_seen_in_training(shipped, tokenizer):
    """184 of 200 were measured."""
    cases = evaluate.generated(40, 512)
    assert evaluate.score(cases, evaluate.replies(shipped, tokenizer, [c.messages for c in cases]))["recalled"] >= 0.9
