"""Which releases of transformers the tests run with; any other is warned of, and never refused."""

import warnings

TESTED = ("5.23", "5.24")


def warn_untested(version: str) -> None:
    """Warn of a release of transformers that this library was not tested with; development versions count as their release."""
    if ".".join(version.split(".")[:2]) not in TESTED:
        tested = " and ".join(TESTED)
        warnings.warn(f"kvcache is tested with transformers {tested}, and this is {version}: its caches may be wrong or fail; `pip install 'transformers~={TESTED[-1]}.0'` has none of that", stacklevel=2)
