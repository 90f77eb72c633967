"""What a step is: one attention layer, or a whole model, with random weights and a cache filled to a context.

Filling appends random keys and values directly: running a prompt of that length would take minutes and change nothing.
Everything is drawn from fixed seeds; unless a `Setup` says otherwise it is fp32, batch 1 and on the CPU.
"""

import functools
import time
from dataclasses import dataclass

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from ...architecture import cache_argument
from ...chat.decode_step import CompiledStep
from ...extras import free_memory
from ...weights import LOADING

VOCABULARY = 2048  # small: a large one costs every contender the same, in the last layer
CONTEXT_LIMIT = 1 << 18


@dataclass(frozen=True)
class Step:
    """Seconds of one decode step; `update`: of the cache's part, where it can be told apart."""

    seconds: float
    update: float | None = None


@dataclass(frozen=True)
class Setup:
    """Where a rig computes, in which dtype, and how many rows at once."""

    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    batch: int = 1

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def now(self) -> float:
        """Seconds on a clock, read when the device has done all that it was asked to."""
        if not self.on_cpu:
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    def free_memory(self) -> int | None:
        """Bytes that are free where keys and values are kept, or None where nobody tells."""
        module = torch.get_device_module(self.device)
        if self.on_cpu or not hasattr(module, "mem_get_info"):
            return free_memory()
        return module.mem_get_info(self.device)[0] + module.memory_reserved(self.device) - module.memory_allocated(self.device)


class ModelRig:
    """Decode one token with a whole Llama of this geometry."""

    def __init__(self, setup: Setup = Setup(), **geometry: int):
        self.setup = setup
        config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT_LIMIT, attn_implementation="sdpa", **geometry)
        with LOADING, torch.random.fork_rng(devices=[]), setup.device:
            torch.manual_seed(0)
            self.model = AutoModelForCausalLM.from_config(config, dtype=setup.dtype).eval()
        self.token = torch.zeros(setup.batch, 1, dtype=torch.long, device=setup.device)

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
            start = self.setup.now()
            cache.update(*states, index)
            seconds += self.setup.now() - start
        return seconds

    def states(self, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random keys and values [B, H_kv, tokens, D]."""
        config = self.model.config
        shape = (self.setup.batch, config.num_key_value_heads, tokens, config.head_dim)
        return self.random(seed, shape, shape)

    def random(self, seed: int, *shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Normally distributed tensors, one after the other from one seed."""
        generator = torch.Generator(self.setup.device).manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator, dtype=self.setup.dtype, device=self.setup.device) for shape in shapes)

    def step(self, cache: transformers.Cache, compiled: bool = False) -> Step:
        """Feed one token, by what torch.compile made of the model if asked to."""
        feed = self.compiled.forward_for(cache) if compiled else self.model
        start = self.setup.now()
        feed(input_ids=self.token, logits_to_keep=1, **{self.keyword: cache})
        return Step(self.setup.now() - start)

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

    def __init__(self, query_heads: int, kv_heads: int = 8, head_dim: int = 128, setup: Setup = Setup()):
        super().__init__(
            setup, hidden_size=64, intermediate_size=8, num_hidden_layers=1, num_attention_heads=query_heads, num_key_value_heads=kv_heads, head_dim=head_dim
        )
        self.layer = self.model.model.layers[0].self_attn
        self.key, self.value = self.states(1, seed=1001)
        (self.query,) = self.random(1002, (setup.batch, query_heads, 1, head_dim))

    def step(self, cache: transformers.Cache, compiled: bool = False) -> Step:
        """Update and attend, as transformers' attention layers do between their projections. Raises ValueError if asked to compile."""
        if compiled:
            raise ValueError("one layer is timed uncompiled: whole models are compiled, and not caches")
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.model.config._attn_implementation, eager_attention_forward)
        start = self.setup.now()
        keys, values = cache.update(self.key, self.value, 0)
        updated = time.perf_counter() - start if self.setup.on_cpu else None  # a GPU that is waited for between the two would be slower
        attend(self.layer, self.query, keys, values, None, dropout=0.0, scaling=self.layer.scaling)
        return Step(self.setup.now() - start, updated)


# A tiny Llama, the geometry of a model of 135 million parameters, and one of a thousand million for a GPU.
TINY = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, head_dim=64)
SMALL = dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64)
LARGE = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64)
