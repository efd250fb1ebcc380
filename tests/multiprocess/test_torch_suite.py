"""Some of torch's own distributed tests, which its wheel brings along; see tests/torch_suite.py."""

import pytest

from tests.torch_suite import IN_CI, read_names, run_one


@pytest.mark.parametrize("test", read_names(IN_CI))
def test_passes_as_with_gloo(test: str) -> None:
    outcome, error = run_one(test, "dda", world=3)
    assert outcome == "pass", error
