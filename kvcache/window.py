"""Windows: layers that keep the latest tokens and forget the rest."""

from typing import Any

import torch

from .attention import attendable
from .layer import Layer, RowsLayer, T, append_both
from .predict import Shape, predicted_rows
from .validation import whole_number

DRAFT = 256  # tokens that an assistant may draft one by one


class Windowed(Layer):
    """What every layer of the last `window_length` tokens answers, however it stores them: `held` of those seen.

    A single token attends to itself and the window_length - 1 before it. A chunk of n tokens attends to the
    window_length - 1 tokens before the chunk and, causally, to the chunk itself: tokens are evicted between calls. On
    a model's own sliding-window layers its mask makes every chunking equal; on full attention the chunking matters.
    """

    bounded = True

    def keep_latest(self, window_length: int) -> None:
        """Be a window of so many tokens. Raises ValueError for fewer than two."""
        self.window_length = whole_number("window_length", window_length, 2)
        self.masked = self.is_sliding  # does the model's own mask hide every token that this window forgets?
        self.record_past = False
        self.unsettled: int | None = None  # tokens since the last `crop`, but for the first piece; None before that

    @property
    def is_croppable(self) -> bool:
        """As decoding with drafts asks: while it lets go of nothing on its own."""
        return self.record_past

    def refuse_drafts(self) -> None:
        """Where the model does not mask the window: the tokens of a draft, fed at once, would see what came before it, and say other things than token by token."""
        if not self.masked:
            raise ValueError(
                f"a window of {self.window_length} tokens on full attention cannot decode with drafts (prompt lookup, an assistant): "
                "the tokens of a draft would see more than the window and could say something else; use a cache that keeps every token"
            )

    def activate_past_recording(self) -> None:
        """From now on let go of old tokens at each `crop` only, as decoding with drafts asks, so that it can go back."""
        self.record_past, self.unsettled = True, None

    def reset(self) -> None:
        super().reset()
        self.record_past, self.unsettled = False, None

    def _drafting(self, n: int) -> bool:
        """Are the next `n` tokens still a draft's? Once DRAFT tokens have come with no `crop` they are not, since nothing says when drafts end."""
        if self.record_past:
            self.unsettled = 0 if self.unsettled is None else self.unsettled + n
            self.record_past = self.unsettled <= DRAFT
        return self.record_past

    @property
    def evicted(self) -> int:
        """Tokens seen and no longer held."""
        return self.seen - self.held

    @property
    def gone(self) -> int:
        """Tokens seen and no longer stored."""
        return self.evicted

    @property
    def crop_floor(self) -> int:
        return 0 if not self.gone else min(self.seen, self.gone + self.window_length - 1)

    def get_max_length(self) -> int:
        return self.window_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        attended = min(self.held, self.window_length - 1) + query_length
        return attended, self.seen + query_length - attended


class WindowLayer(Windowed, RowsLayer):
    """The last `window_length` tokens. Stores keys, values [B, H, held, D], held <= window_length."""

    settings = ("window_length",)

    def __init__(self, window_length: int, is_sliding: bool = False):
        super().__init__(is_sliding)
        self.keep_latest(window_length)

    def trim(self) -> None:
        self._evict(max(0, self.held - self.window_length))
        self.unsettled = None

    @property
    def held(self) -> int:
        return len(self.key_rows)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; return what the n tokens attend to, [B, H, min(held, window_length - 1) + n, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.key_rows.refuse(key_states)
        self.value_rows.refuse(value_states)
        n = key_states.shape[T]
        if self._drafting(n):
            return self._recorded(key_states, value_states)
        self._evict(max(0, self.held - self.window_length + 1))
        if n == 1:
            self._append(key_states, value_states)
            return attendable(self, *self.readable())
        attended = _joined(self.key_rows.view(), key_states), _joined(self.value_rows.view(), value_states)
        self.seen += n
        self._keep(*attended)
        return attended

    def _recorded(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attended = self.get_mask_sizes(key_states.shape[T])[0]
        self._append(key_states, value_states)
        return self.key_rows.view()[:, :, -attended:], self.value_rows.view()[:, :, -attended:]

    def _append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        append_both(self.key_rows, self.value_rows, keys, values)
        self.seen += keys.shape[T]

    def _keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold what stays of [B, H, n, D], the tokens a chunk attended to."""
        self.key_rows.replace(keys[:, :, -self.window_length :])
        self.value_rows.replace(values[:, :, -self.window_length :])

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        super().check_assigned(side, rows)
        if self.evicted and rows.shape[T] != self.held:
            raise ValueError(
                f"{side} of {rows.shape[T]} tokens cannot be assigned to a {type(self).__name__} that has seen {self.seen} and holds {self.held}: it could not tell "
                "which they are; assign as many, crop() the last ones, or reset() it and feed the tokens again"
            )

    def _evict(self, n: int) -> None:
        """Forget the `n` oldest tokens."""
        self.key_rows.drop_front(n)
        self.value_rows.drop_front(n)

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        return predicted_rows(min(tokens, self.window_length), shape)

    def token_fates(self) -> list[tuple[str, int]]:
        return [(fate, count) for fate, count in (("evicted", self.evicted), ("full", self.held)) if count]


def _joined(held: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new if held is None or held.shape[T] == 0 else torch.cat([held, new], dim=T)
