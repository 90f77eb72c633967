"""Packages that only some features need: what to say where one is not installed, and what is done without."""

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
