"""Mimetic initialisation: a standard Llama that copies before any training, because its weights start as induction heads.

After Trockman and Kolter 2023, arXiv 2305.09828, taken on to induction heads (Olsson et al. 2022, arXiv 2209.11895). Layer 0 writes the
tokens before each token into subspaces; layers 1 and 2 look for keys whose preceding tokens match; what they find goes to the output.
d is the hidden size, e the head size, H = e / 2; channel 0 of every embedding is a constant to hang positions on.
"""

import math

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

CONSTANT, EMBEDDING_STD, FINAL_NORM = 1.5, 0.5, 0.12
OFFSETS = ((1.0, 7.0), (2.0, 7.0), (3.0, 7.0), (4.0, 2.5))  # per head of layer 0: tokens back, amplitude
SLOW = 6e-4  # radians per token: frequencies below hardly feel position
# Terms of each induction head: "self" is the token itself against the token before the key, (i, j) offsets i of the query against j of the key.
TERMS = (("self",), ("self", (0, 1)), ("self", (0, 1), (1, 2)), ("self", (3, 3)))


def orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A random matrix [rows, columns] with orthonormal rows or columns, whichever are fewer."""
    q, _ = torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns), generator=generator))
    return q if rows >= columns else q.T


def frequencies(model: LlamaForCausalLM) -> Tensor:
    """The RoPE frequencies f_j, [H], in radians per token."""
    return model.model.rotary_emb.inv_freq.detach().float().cpu()


@torch.no_grad()
def initialise(model: LlamaForCausalLM, seed: int = 0) -> None:
    """Set the weights in place."""
    generator = torch.Generator().manual_seed(seed)
    plain(model, generator)
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, EMBEDDING_STD, generator=generator)
    embedding[:, 0] = CONSTANT
    model.model.norm.weight.fill_(FINAL_NORM)
    values, writes = _look_back(model, generator)
    for layer in (1, 2):
        _induce(model, layer, values, writes, generator)


def plain(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Matrices of all layers normal with std d^-0.5, those that write into the residual stream zero."""
    std = model.config.hidden_size ** -0.5
    for layer in model.model.layers:
        for name, p in layer.named_parameters():
            if p.dim() == 2:
                p.zero_() if name.endswith(("o_proj.weight", "down_proj.weight", "output_linear.weight")) else p.normal_(0, std, generator=generator)


def _query_head(model: LlamaForCausalLM, head: int) -> slice:
    """The rows of the first query head of a key head; the others of its group stay random and write nothing."""
    e = model.config.head_dim
    at = head * e * (model.config.num_attention_heads // model.config.num_key_value_heads)
    return slice(at, at + e)


def _look_back(model: LlamaForCausalLM, generator: torch.Generator) -> tuple[Tensor, list[Tensor]]:
    """Layer 0: head i attends o_i tokens back and writes what was there into a subspace of its own.

    Returns the value map V [e, d] and the subspaces Q_i [d, e] each.
    """
    attention, f, e = model.model.layers[0].self_attn, frequencies(model), model.config.head_dim
    half, d = e // 2, model.config.hidden_size
    value = orthonormal(e, d, generator)
    value[:, 0] = 0
    basis = orthonormal(d, d, generator)
    attention.k_proj.weight.zero_()
    writes = []
    for head, (offset, amplitude) in enumerate(OFFSETS):
        at, asks = head * e, _query_head(model, head)
        attention.q_proj.weight[asks] = 0
        attention.q_proj.weight[asks][:half, 0] = amplitude / 3 * torch.cos(f * offset)
        attention.q_proj.weight[asks][half:, 0] = -amplitude / 3 * torch.sin(f * offset)
        attention.k_proj.weight[at:at + half, 0] = amplitude / 3
        attention.v_proj.weight[at:at + e] = value
        writes.append(basis[:, head * e:(head + 1) * e])
        attention.o_proj.weight[:, asks] = 0.8 * writes[-1]
    return value, writes


def _induce(model: LlamaForCausalLM, layer: int, value: Tensor, writes: list[Tensor], generator: torch.Generator) -> None:
    """Layers 1 and 2: score keys by how well what came before them matches what the query is (and what came before it)."""
    attention, f, e = model.model.layers[layer].self_attn, frequencies(model), model.config.head_dim
    slow = torch.nonzero(f < SLOW).flatten()
    dims = torch.cat([slow, slow + e // 2])
    for head, terms in enumerate(TERMS):
        at, asks = head * e, _query_head(model, head)
        query, key = torch.zeros(e, model.config.hidden_size), torch.zeros(e, model.config.hidden_size)
        for number, term in enumerate(terms):
            strength = 2.5 if len(terms) == 1 else 2.9 / math.sqrt(len(terms)) * (1 + 0.375 * (number > 0))
            mix = orthonormal(len(dims), e, generator)
            i, j = (None, 0) if term == "self" else term
            query[dims] += strength * mix @ (value if i is None else writes[i].T)
            key[dims] += strength * mix @ writes[j].T
        attention.q_proj.weight[asks] = query
        attention.k_proj.weight[at:at + e] = key
        found = orthonormal(e, model.config.hidden_size, generator)
        attention.v_proj.weight[at:at + e] = found
        attention.o_proj.weight[:, asks] = 3 * found.T
