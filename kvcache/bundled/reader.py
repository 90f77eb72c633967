"""An encoder-decoder made of a Llama's parts: the encoder reads a text, the decoder chats about it and looks things up by cross-attention.

UMT5's blocks are a Llama's but for positions, which are biases by distance in place of rotations. So its feed-forward blocks, norms and
projections begin as a Llama's: the encoder's layer as layer 0, which writes the tokens before each token beside it, and cross-attention as the
attention that looks for what came before. Only layer 0 knows distances; the others of this family's Llama hardly feel them.
"""

import torch
from torch import Tensor
from transformers import UMT5Config, UMT5ForConditionalGeneration

from . import tokenizer

LAYERS = (0, 1, 3)  # the Llama's layers that the decoder begins with: without layer 2 it recalls as well, and the file stays below 10 MB
HEADS, HEAD_DIM, HIDDEN, FORWARD, THETA = 4, 64, 256, 704, 5e6  # the Llama's
FURTHEST, NEVER = 256, -10.0  # tokens back whose bias is computed; the bias of tokens ahead


def make() -> UMT5ForConditionalGeneration:
    """One encoder layer and three decoder layers, with random weights."""
    return UMT5ForConditionalGeneration(UMT5Config(
        vocab_size=tokenizer.VOCAB_SIZE, d_model=HIDDEN, d_kv=HEAD_DIM, d_ff=FORWARD, num_heads=HEADS, num_layers=1, num_decoder_layers=len(LAYERS), dropout_rate=0.0,
        layer_norm_epsilon=1e-5, feed_forward_proj="gated-silu", pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ))


@torch.no_grad()
def adopt(model: UMT5ForConditionalGeneration, theirs: dict[str, Tensor]) -> None:
    """Set the weights from a Llama's, in place."""
    model.shared.weight.copy_(theirs["model.embed_tokens.weight"])
    model.decoder.final_layer_norm.weight.copy_(theirs["model.norm.weight"] * HIDDEN**0.5)  # UMT5 divides by the root before its head
    model.encoder.final_layer_norm.weight.copy_(theirs["model.layers.1.input_layernorm.weight"])  # what the first lookup reads
    _block(model.encoder.block[0], theirs, 0)
    for block, layer in zip(model.decoder.block, LAYERS):
        _block(block, theirs, layer)
    for block in (model.encoder.block[0], model.decoder.block[0]):
        _look_back(block.layer[0].SelfAttention, theirs)
    for block, layer in zip(model.decoder.block, LAYERS):
        _attention(block.layer[1].EncDecAttention, theirs, layer)
        block.layer[1].layer_norm.weight.copy_(theirs[f"model.layers.{layer}.input_layernorm.weight"])
    model.decoder.block[0].layer[1].EncDecAttention.o.weight.zero_()  # layer 0 looks nothing up


def _block(block, theirs: dict[str, Tensor], layer: int) -> None:
    _attention(block.layer[0].SelfAttention, theirs, layer)
    block.layer[0].SelfAttention.relative_attention_bias.weight.zero_()
    block.layer[0].layer_norm.weight.copy_(theirs[f"model.layers.{layer}.input_layernorm.weight"])
    block.layer[-1].layer_norm.weight.copy_(theirs[f"model.layers.{layer}.post_attention_layernorm.weight"])
    for own, llama in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
        getattr(block.layer[-1].DenseReluDense, own).weight.copy_(theirs[f"model.layers.{layer}.mlp.{llama}.weight"])


def _attention(attention, theirs: dict[str, Tensor], layer: int) -> None:
    for own in "qkvo":
        getattr(attention, own).weight.copy_(theirs[f"model.layers.{layer}.self_attn.{own}_proj.weight"])
    attention.q.weight.mul_(HEAD_DIM**-0.5)  # UMT5 does not scale its scores


def _look_back(attention, theirs: dict[str, Tensor]) -> None:
    """Layer 0 scores by distance alone: the bias of each is what a Llama's average token gives the average token so far back."""
    average = torch.nn.functional.normalize(theirs["model.embed_tokens.weight"].float(), dim=-1).mean(dim=0) * HIDDEN**0.5
    average = average * theirs["model.layers.0.input_layernorm.weight"]
    query, key = ((theirs[f"model.layers.0.self_attn.{name}_proj.weight"].float() @ average).view(HEADS, 2, -1) for name in "qk")  # halves that turn together
    back = torch.arange(FURTHEST)
    angles = back[:, None] * THETA ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))  # [distances, half]
    cos, sin = angles.cos(), angles.sin()
    turned = torch.stack([key[:, 0, None] * cos + key[:, 1, None] * sin, key[:, 1, None] * cos - key[:, 0, None] * sin], dim=1)  # a key so far back
    scores = torch.einsum("hpe,hpde->dh", query, turned) * HEAD_DIM**-0.5
    buckets = attention._relative_position_bucket(-back)
    bias = attention.relative_attention_bias.weight.fill_(NEVER)
    for bucket in buckets.unique():
        bias[bucket] = scores[buckets == bucket].mean(dim=0)
    attention.q.weight.zero_()
