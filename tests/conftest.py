"""One thread for every test: tiny models gain nothing from more, and lose much on a busy machine.

The loops of attention are compiled before the first test, so that no cache changes to them halfway.
"""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["KVCACHE_PREFIX_BYTES"] = "0"  # no test finds what another has read unless it has a store of its own
os.environ["KVCACHE_DECODE"] = "eager"  # no test compiles in the background unless it says decode="auto"

import pytest  # noqa: E402
import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton's kernels run on the CPU, slowly, and only what asks for them

torch.set_num_threads(1)


def pytest_xdist_auto_num_workers(config) -> int:
    """Processes for the whole suite, up to four; none where files are named, which would only wait for torch to be imported again."""
    return min(os.cpu_count() or 1, 4) if config.args_source is config.ArgsSource.TESTPATHS else 0


FIRST = ("test_browser", "test_adding_a_cache", "test_weights", "test_every_architecture", "test_cuda_kernels")  # begun last, one worker would be left alone with them


def pytest_collection_modifyitems(items) -> None:
    """The files that take longest before all others."""
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


@pytest.fixture(scope="session", autouse=True)
def attention_loops():
    from kvcache.kernels import cpu

    for loops in (cpu.PACKED, cpu.PLAIN):
        assert loops.ready(wait=True), loops.reason
