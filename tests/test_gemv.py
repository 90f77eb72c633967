"""A model made for one token shares its weights with the one it was made of, gives its logits, and leaves it as it was."""

import pytest
import torch
from tiny_chat import make_model, some_ids

from kvcache.chat import gemv
from kvcache.chat.gemv import SingleRow, for_single_rows, halved


def rows_of(model):
    return [module for module in model.modules() if isinstance(module, SingleRow)]


def linears_of(model):
    return [module for module in model.modules() if type(module) is torch.nn.Linear]


@pytest.fixture
def model():
    """A Llama whose weights bfloat16 holds, as those that are published in it."""
    model = make_model(num_hidden_layers=2).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model


@torch.no_grad()
@pytest.mark.parametrize("tokens", (1, 7))
def test_its_logits_are_the_models_for_one_token_and_for_several(model, tokens):
    ids = torch.tensor([some_ids(tokens)])
    made = for_single_rows(model)
    assert len(rows_of(made)) == len(linears_of(model)) > 0 and not linears_of(made)
    torch.testing.assert_close(made(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)  # sums in another order


def test_it_shares_every_parameter_and_buffer_and_leaves_the_model_and_its_config_alone(model):
    before, config = [type(module) for module in model.modules()], model.config.to_dict()
    made = for_single_rows(model)
    made.config.get_text_config()._attn_implementation = "eager"
    assert [type(module) for module in model.modules()] == before and model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"
    ours = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    assert {id(parameter) for parameter in made.parameters()} <= ours


def test_a_16_bit_copy_holds_the_very_weights_and_is_made_once_for_tied_layers(model):
    model.lm_head.weight = model.model.embed_tokens.weight
    made = for_single_rows(model)
    for row in rows_of(made):
        assert row.rows.dtype == torch.bfloat16 and torch.equal(row.rows.float(), row.weight)
    twice = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    twice[1].weight = twice[0].weight
    first, second = rows_of(for_single_rows(twice))
    assert first.rows is second.rows


def test_weights_are_halved_to_the_type_that_holds_them_or_not_at_all():
    bfloat, half, full = torch.tensor([3e38]).bfloat16().float(), torch.tensor([1 + 2**-10]), torch.tensor([1 + 2**-20])
    assert [halved(weight).dtype for weight in (bfloat, half, full)] == [torch.bfloat16, torch.float16, torch.float32]
    assert halved(full) is full


def test_where_memory_is_short_it_reads_the_models_own_weights(model, monkeypatch):
    monkeypatch.setattr(gemv, "SHARE", 0.0)
    for row in rows_of(for_single_rows(model)):
        assert row.rows.data_ptr() == row.weight.data_ptr()


def test_layers_with_a_bias_keep_it_and_those_of_other_types_are_left():
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3).bfloat16())
    made = for_single_rows(model)
    assert isinstance(made[0], SingleRow) and type(made[1]) is torch.nn.Linear
    hidden = torch.randn(1, 1, 8)
    torch.testing.assert_close(made[0](hidden), model[0](hidden))
