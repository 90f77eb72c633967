"""What the catalog claims a cache can do, it does; what it does not claim, it refuses with a sentence."""

import pytest
from operations import CASES, CHOSEN, OPERATIONS, try_operation

from kvcache import catalog
from kvcache.entry import OPERATIONS as CLAIMS


def test_every_cache_and_every_operation_is_tried():
    assert {case.name for case in CASES.values()} == {*catalog.ENTRIES, *catalog.OTHERS} and set(OPERATIONS) == set(CLAIMS)
    assert all(case.loses for case in CHOSEN.values() if catalog.entry(case.name).lossy)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_refused_as_the_catalog_says(name, operation):
    outcome = try_operation(CASES[name], operation)
    claimed = operation in catalog.entry(CASES[name].name).can
    assert (outcome.refused is None) == claimed, outcome.refused or "it works, and the catalog does not say so"
