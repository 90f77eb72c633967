"""Environment variables that more than double the speed of torch on few CPU cores.

Freed memory is kept for the next step, and idle threads sleep rather than spin. They count only when set before the process starts,
so a command starts itself again with them.
"""

import os
import sys

VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "268435456", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


def restart(module: str) -> None:
    """Replace this process by `python -m module` with the same arguments and VARIABLES set, unless they are already."""
    if any(os.environ.get(name) != value for name, value in VARIABLES.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **VARIABLES})
