"""Where transformers goes wrong, kvcache does not; tests/upstream.py shows both side by side."""

import pytest
from upstream import DEFECTS


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.what for defect in DEFECTS])
def test_kvcache_is_right_where_upstream_was_seen_to_fail(defect):
    assert defect.ours()
