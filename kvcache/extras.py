"""The packages beside this one: which releases of transformers the tests run with, what to say where one that only some features need is missing, and what is done without."""

import warnings

TESTED = ("5.23", "5.24")  # releases of transformers

# What is imported -> the package it is of, and the extra that brings that.
EXTRAS = {
    "numba": ("numba", "cpu"),
    "llvmlite": ("numba", "cpu"),
    "psutil": ("psutil", "cpu"),
    "optimum": ("optimum-quanto", "quanto"),
    "hqq": ("hqq", "hqq"),
    "plotly": ("plotly", "playground"),
}


def why_not_imported(error: Exception) -> str:
    """Why a feature whose import failed is missing: which extra brings it, or what a broken installation raised."""
    imported = (getattr(error, "name", None) or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and imported in EXTRAS:
        package, extra = EXTRAS[imported]
        return f"it needs {package}: pip install kvcache[{extra}]"
    return f"{type(error).__name__}: {error}"


def free_memory() -> int | None:
    """Bytes of this computer's memory that are free, or None without psutil, which tells."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory().available


def total_memory() -> int | None:
    """Bytes of this computer's memory, or None without psutil."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory().total


def warn_untested(version: str) -> None:
    """Warn of a release of transformers that this library was not tested with; development versions count as their release."""
    if ".".join(version.split(".")[:2]) not in TESTED:
        tested = " and ".join(TESTED)
        warnings.warn(f"kvcache is tested with transformers {tested}, and this is {version}: its caches may be wrong or fail; `pip install 'transformers~={TESTED[-1]}.0'` has none of that", stacklevel=2)
