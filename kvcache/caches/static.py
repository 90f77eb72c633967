"""StaticCache: all memory allocated up front, at addresses that never change."""

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING

from ..cache import Cache, build_layers
from ..entry import Entry, Parameter
from ..layer import T, Buffer, Layer, new_rows
from ..predict import Shape


class StaticLayer(Layer):
    """Room for `max_cache_len` tokens. Stores keys, values [B, H, max_cache_len, D], written in place.

    `update` returns the whole buffers, whose unwritten rows are zero and masked. Raises ValueError on overflow.
    """

    stores = {"key_rows": "keys", "value_rows": "values"}
    is_compileable = True
    is_croppable = True
    key_rows: Buffer
    value_rows: Buffer

    def __init__(self, max_cache_len: int, is_sliding: bool = False):
        super().__init__(is_sliding)
        self.max_cache_len = max_cache_len
        self.key_rows, self.value_rows = Buffer(max_cache_len), Buffer(max_cache_len)
        self.position = torch.zeros((), dtype=torch.long)  # next row to write, as a tensor: no recompiling as it moves

    def get_max_length(self) -> int:
        return self.max_cache_len

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.max_cache_len, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        with torch.inference_mode(False):
            self.position = self.position.to(self.device)
        for buffer, like in ((self.key_rows, key_states), (self.value_rows, value_states)):
            if buffer.data is None:
                buffer.data = new_rows(like, self.max_cache_len)
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(buffer.data)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.position)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, H, n, D] behind what is there; return the whole buffers [B, H, max_cache_len, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        n = key_states.shape[T]
        self._check(key_states, n)
        rows = torch.arange(n, device=self.position.device) + self.position
        self.key_rows.data.index_copy_(T, rows, key_states)
        self.value_rows.data.index_copy_(T, rows, value_states)
        self.position.add_(n)
        self._set_seen(self.seen + n)
        return self.key_rows.data, self.value_rows.data

    def _check(self, key_states: torch.Tensor, n: int) -> None:
        if self.seen + n > self.max_cache_len:
            raise ValueError(
                f"StaticCache is full: it has room for max_cache_len={self.max_cache_len} tokens, holds {self.seen} and "
                f"was given {n} more; make it longer, reset() it, or use a cache that grows"
            )
        if key_states.shape[0] != self.batch_size:
            raise ValueError(f"this StaticCache was allocated for batch {self.batch_size}, got {key_states.shape[0]}; make a new one")

    def _set_seen(self, seen: int) -> None:
        self.seen = self.key_rows.stop = self.value_rows.stop = seen

    def _crop_to(self, length: int) -> None:
        self.position.fill_(length)
        self._set_seen(length)

    def reset(self) -> None:
        """Forget all tokens at the same addresses, zeroed."""
        if self.is_initialized:
            for buffer in self.buffers().values():
                buffer.data.zero_()
            self._crop_to(0)

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        spare = self.max_cache_len - tokens
        return {"keys": tokens * shape.key_nbytes, "values": tokens * shape.value_nbytes, "reserved": spare * shape.token_nbytes}

    @property
    def keys(self) -> torch.Tensor | None:
        return self.key_rows.data

    @property
    def values(self) -> torch.Tensor | None:
        return self.value_rows.data


class StaticCache(Cache, transformers.StaticCache):
    """Allocate `max_cache_len` tokens a layer at the first token and write in place ever after.

    Full-attention layers are ours: they crop and refuse to overflow. The model's own sliding-window and state-space
    layers are transformers' static ones. Raises ValueError when a forward would go past max_cache_len.
    """

    name = "static"

    def __init__(self, config: PreTrainedConfig, max_cache_len: int):
        if max_cache_len < 1:
            raise ValueError(f"max_cache_len must be at least 1, got {max_cache_len}")
        self.capacity = max_cache_len
        table = {"full_attention": lambda **_: StaticLayer(max_cache_len)}
        layers = build_layers(config.get_text_config(decoder=True), table, STATIC_LAYER_TYPE_MAPPING, max_cache_len=max_cache_len)
        Cache.__init__(self, layers)


ENTRY = Entry(
    name="static",
    title="Static",
    summary="Reserves all its memory at the first token and writes in place; made for torch.compile and fixed budgets.",
    cache_class=StaticCache,
    make=lambda config, max_cache_len: StaticCache(config, max_cache_len),
    parameters=(
        Parameter("max_cache_len", "Capacity", "int", 2048, "Tokens there is room for; a longer chat is refused.", minimum=16, maximum=131072, step=16),
    ),
    can=frozenset({"crop", "beam", "continue", "batch", "copy", "exact", "compile"}),
    label=lambda max_cache_len: f"Static {max_cache_len}",
)
