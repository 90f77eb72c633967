"""What a step is: one attention layer, or a whole model, with random weights and a cache filled to a context.

Filling appends random keys and values directly: running a prompt of that length would take minutes and change nothing.
Everything is fp32, batch 1 and drawn from fixed seeds.
"""

import functools
import time
from dataclasses import dataclass

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from ...architecture import cache_argument
from ...chat.decode_step import CompiledStep
from ...weights import LOADING

VOCABULARY = 2048  # small: a large one costs every contender the same, in the last layer
CONTEXT_LIMIT = 1 << 18


@dataclass(frozen=True)
class Step:
    """Seconds of one decode step; `update`: of the cache's part, where it can be told apart."""

    seconds: float
    update: float | None = None


class ModelRig:
    """Decode one token with a whole Llama of this geometry."""

    def __init__(self, **geometry: int):
        config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT_LIMIT, attn_implementation="sdpa", **geometry)
        with LOADING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model = LlamaForCausalLM(config).eval()
        self.token = torch.zeros(1, 1, dtype=torch.long)

    @property
    def plain_attention(self) -> str:
        return "sdpa"

    def use(self, implementation: str) -> None:
        """Attend by this implementation from now on."""
        if self.model.config._attn_implementation != implementation:
            self.model.config._attn_implementation = implementation

    def fill(self, cache: transformers.Cache, tokens: int) -> float:
        """Append `tokens` random keys and values to every layer; the seconds that storing them took."""
        seconds = 0.0
        for index in range(self.model.config.num_hidden_layers):
            states = self.states(tokens, seed=index)
            start = time.perf_counter()
            cache.update(*states, index)
            seconds += time.perf_counter() - start
        return seconds

    def states(self, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random keys and values [1, H_kv, tokens, D]."""
        config = self.model.config
        generator = torch.Generator().manual_seed(seed)
        shape = (1, config.num_key_value_heads, tokens, config.head_dim)
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float32) for _ in range(2))

    def step(self, cache: transformers.Cache, compiled: bool = False) -> Step:
        """Feed one token, by what torch.compile made of the model if asked to."""
        feed = self.compiled.forward_for(cache) if compiled else self.model
        start = time.perf_counter()
        feed(input_ids=self.token, logits_to_keep=1, **{self.keyword: cache})
        return Step(time.perf_counter() - start)

    @functools.cached_property
    def keyword(self) -> str:
        """How the model calls its cache."""
        return cache_argument(self.model)

    @functools.cached_property
    def compiled(self) -> CompiledStep:
        """The model as inductor compiles it, at its first call."""
        return CompiledStep(self.model)


class LayerRig(ModelRig):
    """One attention layer: append a token's key and value, attend to all with that token's query."""

    def __init__(self, query_heads: int, kv_heads: int = 8, head_dim: int = 128):
        super().__init__(
            hidden_size=64, intermediate_size=8, num_hidden_layers=1, num_attention_heads=query_heads, num_key_value_heads=kv_heads, head_dim=head_dim
        )
        self.layer = self.model.model.layers[0].self_attn
        self.key, self.value = self.states(1, seed=1001)
        self.query = torch.randn((1, query_heads, 1, head_dim), generator=torch.Generator().manual_seed(1002), dtype=torch.float32)

    def step(self, cache: transformers.Cache, compiled: bool = False) -> Step:
        """Update and attend, as transformers' attention layers do between their projections. Raises ValueError if asked to compile."""
        if compiled:
            raise ValueError("one layer is timed uncompiled: whole models are compiled, and not caches")
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.model.config._attn_implementation, eager_attention_forward)
        start = time.perf_counter()
        keys, values = cache.update(self.key, self.value, 0)
        updated = time.perf_counter()
        attend(self.layer, self.query, keys, values, None, dropout=0.0, scaling=self.layer.scaling)
        return Step(time.perf_counter() - start, updated - start)


# The tiny Llama, and the geometry of a model of 135 million parameters.
TINY = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, head_dim=64)
SMALL = dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64)
