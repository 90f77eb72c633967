"""Tiny random models and a tokenizer trained on the spot, for tests of the token loop and the conversation."""

from functools import cache

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kvcache.chat.models import LoadedModel, wrap

torch.set_num_threads(1)  # on models this small several threads only wait for each other

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
IGNORES_SYSTEM = CHATML.replace("{% for message in messages %}", "{% for message in messages if message['role'] != 'system' %}")
STRIPS = CHATML.replace("message['content']", "message['content'] | trim")

SENTENCES = [
    "The lighthouse keeper counts the ships that pass before dawn.",
    "Please remember that my name is Bram and that the code is 395.",
    "user assistant system What is the capital of France? It is Paris.",
    "Once upon a time a fox met a crow who had found a piece of cheese.",
]


def make_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    return fast


COMMON = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_position_embeddings=2048,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=2,
)
# What sets each architecture apart for a cache.
KINDS = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", dict(sliding_window=24)),
    "qwen3": ("Qwen3", {}),
    "gemma3": ("Gemma3Text", dict(sliding_window=24, layer_types=["sliding_attention", "full_attention"])),
    "mamba": ("Mamba", dict(state_size=8)),
}


def make_model(kind: str = "llama", tokenizer: PreTrainedTokenizerFast | None = None, **changes) -> LoadedModel:
    """A random model of that architecture; weights depend on the arguments alone."""
    tokenizer = tokenizer or make_tokenizer()
    name, own = KINDS[kind]
    values = {**COMMON, "vocab_size": len(tokenizer), **own, **changes}
    if kind == "mamba":
        keep = ("hidden_size", "num_hidden_layers", "vocab_size", "state_size", "pad_token_id", "bos_token_id", "eos_token_id")
        values = {key: values[key] for key in keep}
    config = getattr(transformers, f"{name}Config")(**values)
    torch.manual_seed(7)
    model_class = {"Gemma3Text": "Gemma3ForCausalLM"}.get(name, f"{name}ForCausalLM")
    model = getattr(transformers, model_class)(config).eval()
    # Random weights of the usual size hardly look at the past and repeat one token; these do neither.
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if parameter.dim() > 1 and ".layers." in where:
                parameter.mul_(10.0)
        model.get_output_embeddings().weight[2] = 0.0  # never the best: no reply ends by chance
    return wrap(f"tiny-{kind}", model, tokenizer)


READERS = {
    "umt5": ("UMT5", dict(d_kv=16, d_ff=96, num_heads=4, num_layers=1, num_decoder_layers=3, feed_forward_proj="gated-silu")),
    "bart": ("Bart", dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
                          max_position_embeddings=512, forced_eos_token_id=None)),
}  # fmt: skip


def make_reader(kind: str = "umt5", tokenizer: PreTrainedTokenizerFast | None = None, start: int = 1, **changes) -> LoadedModel:
    """A random encoder-decoder; its decoder begins, as chats do, with <|im_start|>, or with the token `start`."""
    tokenizer = tokenizer or make_tokenizer()
    name, own = READERS[kind]
    ids = dict(vocab_size=len(tokenizer), pad_token_id=0, bos_token_id=None, eos_token_id=2, decoder_start_token_id=start)
    torch.manual_seed(7)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(getattr(transformers, f"{name}Config")(d_model=64, **ids, **own, **changes)).eval()
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in where and "shared" not in where and "bias" not in where:
                parameter.mul_(3.0 if kind == "umt5" else 8.0)
        model.get_output_embeddings().weight[2] = 0.0
    return wrap(f"tiny-{kind}", model, tokenizer)


@cache
def reader(kind: str = "umt5") -> LoadedModel:
    """The same encoder-decoder for every test that only reads it."""
    return make_reader(kind)


@cache
def tiny(kind: str = "llama") -> LoadedModel:
    """The same model for every test that only reads it."""
    return make_model(kind)


def some_ids(count: int, seed: int = 0) -> list[int]:
    """Ordinary token ids, no special ones."""
    return torch.randint(3, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
