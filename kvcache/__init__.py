"""Caches for transformers 5: drop-in as `cache=`, `past_key_values=` before 5.24, measured in real bytes, refusing what they cannot do right."""

from transformers import __version__ as _transformers

from .batch import Batch, decode
from .cache import Cache
from .caches.dynamic import DynamicCache
from .caches.encoder_decoder import EncoderDecoderCache
from .caches.evicting import EvictingCache
from .caches.hybrid import HybridCache
from .caches.hybrid_mamba import HybridMambaAttentionDynamicCache
from .caches.mamba import MambaCache
from .caches.offloaded import OffloadedCache
from .caches.offloaded_static import OffloadedStaticCache
from .caches.quantized import HQQQuantizedCache, QuantizedCache, QuantoQuantizedCache
from .caches.sink import SinkCache
from .caches.sliding_window import SlidingWindowCache
from .caches.static import StaticCache
from .catalog import ENTRIES, create, load_cache, predict_memory
from .compact import compact
from .configs import CacheConfig, QuantizedCacheConfig, StaticCacheConfig
from .extras import warn_untested
from .feed import feed
from .generate import generate, resilient_generate
from .layer import CropError
from .memory import Memory, measure_memory
from .prefix_store import PrefixStore

__version__ = "0.1.0"

__all__ = [
    "ENTRIES",
    "Batch",
    "Cache",
    "CacheConfig",
    "CropError",
    "DynamicCache",
    "EncoderDecoderCache",
    "EvictingCache",
    "HQQQuantizedCache",
    "HybridCache",
    "HybridMambaAttentionDynamicCache",
    "MambaCache",
    "Memory",
    "OffloadedCache",
    "OffloadedStaticCache",
    "PrefixStore",
    "QuantizedCache",
    "QuantizedCacheConfig",
    "QuantoQuantizedCache",
    "SinkCache",
    "SlidingWindowCache",
    "StaticCache",
    "StaticCacheConfig",
    "compact",
    "create",
    "decode",
    "feed",
    "generate",
    "load_cache",
    "measure_memory",
    "predict_memory",
    "resilient_generate",
]

warn_untested(_transformers)
