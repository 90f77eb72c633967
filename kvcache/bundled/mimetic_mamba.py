"""Mimetic initialisation of a Mamba-2: weights that start as induction heads, so that it copies before any training.

After Trockman et al. 2024, "Mimetic Initialization Helps State Space Models Learn to Recall", arXiv 2410.11135: B and C read the same
projection, so that a state answers "what was written under this key", and decay is slow. Here the convolution shifts B by one token more than C: each
token is written under the one before it and read under itself, which makes an induction head of one layer. Layer 0 writes the tokens before each
token into subspaces of its own. Channel 0 of every embedding is a constant, which holds the gates open.
"""

import math

import torch
from torch import Tensor
from transformers import GraniteMoeHybridForCausalLM, Mamba2ForCausalLM

from .mimetic import CONSTANT, EMBEDDING_STD, FINAL_NORM, orthonormal, plain

KEY_STD, TAP = 1.5, 0.07  # of keys before the convolution, and what it leaves of them: where silu(u) is nearly u / 2, sums of keys stay unbiased
GATE, FOUND = 1.0, 2.0  # the gates before their silu; how much of what is found goes to the output
LIVES = (100, 20_000)  # tokens after which a head has forgotten all but 1/e, from its first head to its last
STEP = 0.5413  # softplus of it is 1
# Per group: the (query, key) lags that its state channels match, in equal shares.
MATCHES = (((0, 1),), ((0, 1), (1, 2)), ((0, 1), (1, 2), (2, 3)), ((0, 1),))


@torch.no_grad()
def initialise(model: Mamba2ForCausalLM, seed: int = 0) -> None:
    """Set the weights in place."""
    generator = torch.Generator().manual_seed(seed)
    embedding = model.backbone.embeddings.weight
    embedding.normal_(0, EMBEDDING_STD, generator=generator)
    embedding[:, 0] = CONSTANT
    model.backbone.norm_f.weight.fill_(FINAL_NORM)
    for number, block in enumerate(model.backbone.layers):
        _look_back(block.mixer, generator) if number == 0 else _induce(block.mixer, generator)


@torch.no_grad()
def initialise_hybrid(model: GraniteMoeHybridForCausalLM, seed: int = 0) -> None:
    """The same for a model with attention in some layers: those begin at random, to be given another model's weights."""
    generator = torch.Generator().manual_seed(seed)
    plain(model, generator)
    for number, block in enumerate(model.model.layers):
        if block.mamba is not None:
            _look_back(block.mamba, generator) if number == 0 else _induce(block.mamba, generator)


def _parts(mixer) -> dict[str, Tensor]:
    """The rows of the input projection by what they feed."""
    inner, keys = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
    return dict(zip(("gate", "value", "key", "query", "step"), mixer.in_proj.weight.split([inner, inner, keys, keys, mixer.num_heads])))


def _common(mixer) -> dict[str, Tensor]:
    """Open gates, steps of 1, slow decay, and a convolution that passes each token as it is."""
    parts = _parts(mixer)
    mixer.in_proj.weight.zero_()
    parts["gate"][:, 0] = GATE * EMBEDDING_STD / CONSTANT
    mixer.conv1d.weight.zero_()
    mixer.conv1d.bias.zero_()
    mixer.conv1d.weight[:, 0, -1] = 1
    mixer.dt_bias.fill_(STEP)
    lives = torch.logspace(math.log10(LIVES[0]), math.log10(LIVES[1]), mixer.num_heads)
    mixer.A_log.copy_(-lives.log())
    mixer.norm.weight.fill_(1)
    return parts


def _keys(mixer, generator: torch.Generator, taps) -> None:
    """Key and query rows: the same projection per group, shifted by `taps(group)` (query, key) lags."""
    parts, size = _parts(mixer), mixer.ssm_state_size
    conv = mixer.conv1d.weight[mixer.intermediate_size:, 0].view(2, mixer.n_groups, size, -1)  # keys, queries
    conv.zero_()
    for group in range(mixer.n_groups):
        rows = slice(group * size, (group + 1) * size)
        same = torch.randn(size, mixer.hidden_size, generator=generator) * KEY_STD / mixer.hidden_size**0.5
        same[:, 0] = 0
        parts["key"][rows] = parts["query"][rows] = same
        for (query_lag, key_lag), channels in zip(taps(group), torch.arange(size).chunk(len(taps(group)))):
            conv[0, group, channels, -1 - key_lag] = TAP
            conv[1, group, channels, -1 - query_lag] = TAP


def _both_signs(mixer, values: Tensor) -> Tensor:
    """Rows and their negatives: silu(u) - silu(-u) = u, so that the pair passes what one of them would bend."""
    return torch.cat([values, -values])


def _look_back(mixer, generator: torch.Generator) -> None:
    """Layer 0 writes what stood 1, 2 and 3 tokens back into three subspaces; its states start empty-handed."""
    parts, inner, width = _common(mixer), mixer.intermediate_size, mixer.hidden_size // 4
    _keys(mixer, generator, lambda group: ((0, 0),))
    mixer.dt_bias.fill_(-4)
    mixer.D.fill_(1)
    value, basis = orthonormal(width, mixer.hidden_size, generator), orthonormal(mixer.hidden_size, mixer.hidden_size, generator)
    value[:, 0] = 0
    mixer.out_proj.weight.zero_()
    for lag in range(4):
        rows = slice(lag * 2 * width, (lag + 1) * 2 * width)
        parts["value"][rows] = _both_signs(mixer, value)
        mixer.conv1d.weight[:inner][rows] = 0
        mixer.conv1d.weight[:inner][rows, 0, -1 - lag] = 1
        if lag:
            mixer.out_proj.weight[:, rows] = 0.5 * _both_signs(mixer, basis[:, (lag - 1) * width:lag * width].T).T


def _induce(mixer, generator: torch.Generator) -> None:
    """Later layers write each token under those before it and read under those that end here."""
    parts = _common(mixer)
    _keys(mixer, generator, lambda group: MATCHES[group % len(MATCHES)])
    mixer.D.fill_(0.1)
    found = orthonormal(mixer.hidden_size, mixer.hidden_size, generator)
    parts["value"].copy_(_both_signs(mixer, found))
    mixer.out_proj.weight.copy_(FOUND * _both_signs(mixer, found).T)
