"""Policies of eviction, one file each: what an evicting layer keeps once it holds more than its budget. A new policy is one new file."""

import importlib
import pkgutil

from .policy import Held, Policy

__all__ = ["COMPACTING", "POLICIES", "Held", "Policy", "policy_of"]

ORDER = ("mean_attention", "snapkv", "tova", "lagkv", "keydiff", "h2o", "expected_attention")


def _find(attribute: str) -> dict[str, type[Policy]]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [getattr(module, attribute) for module in modules if hasattr(module, attribute)]
    return {each.name: each for each in sorted(found, key=lambda each: ORDER.index(each.name) if each.name in ORDER else len(ORDER))}


POLICIES: dict[str, type[Policy]] = _find("POLICY")  # that choose while tokens come
COMPACTING: dict[str, type[Policy]] = _find("COMPACTS")  # that `kvcache.compact` goes by


def policy_of(policy: str | Policy) -> Policy:
    """The policy called so, with its own settings, or the one that is given. Raises ValueError for a name that is none."""
    if isinstance(policy, Policy):
        return policy
    if policy in COMPACTING:
        return COMPACTING[policy]()
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, or a kvcache.policies.Policy, got {policy!r}")
    return POLICIES[policy]()
