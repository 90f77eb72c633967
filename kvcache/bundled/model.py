"""The default bundled model's shape: a plain Llama of 3.7M parameters."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from . import mimetic, tokenizer


def config(**changes) -> LlamaConfig:
    """hidden 256, 4 layers, 4 heads and 4 KV heads of 64, feed-forward 704, RoPE theta 5e6, tied embeddings."""
    shape = dict(vocab_size=tokenizer.VOCAB_SIZE, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
                 head_dim=64, max_position_embeddings=tokenizer.MAX_LENGTH, tie_word_embeddings=True, rms_norm_eps=1e-5,
                 rope_parameters={"rope_type": "default", "rope_theta": 5e6}, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return LlamaConfig(**{**shape, **changes})


def fresh(seed: int = 0) -> LlamaForCausalLM:
    """A model ready to train, mimetically initialised, in float32."""
    model = LlamaForCausalLM(config())
    mimetic.initialise(model, seed)
    return model


def export(model: LlamaForCausalLM, tok: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (fp16), configuration, generation settings and tokenizer as a folder `from_pretrained` reads."""
    state = {k: v.detach().to("cpu", torch.float16) for k, v in model.state_dict().items()}
    half = LlamaForCausalLM(config()).to(torch.float16)
    half.load_state_dict(state)
    half.tie_weights()
    half.config.dtype = torch.float16
    half.generation_config.update(do_sample=False, max_new_tokens=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    half.save_pretrained(folder)
    tok.save_pretrained(folder)
