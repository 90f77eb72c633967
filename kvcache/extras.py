"""Packages that only some features need: what to say where one is not installed, and what is done without."""

EXTRAS = {"numba": "cpu", "psutil": "cpu", "optimum": "quanto", "hqq": "hqq", "plotly": "playground"}  # package -> the extra that brings it


def why_not_imported(error: Exception) -> str:
    """Why a feature whose import failed is missing: which extra brings it, or what a broken installation raised."""
    package = (getattr(error, "name", None) or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
        return f"it needs {package}: pip install kvcache[{EXTRAS[package]}]"
    return f"{type(error).__name__}: {error}"


def free_memory() -> int | None:
    """Bytes of this computer's memory that are free, or None without psutil, which tells."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory().available
