"""The protocol has no error that Spin can find, and the faults planted in it are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.run import CASES, Case, missing_tool, start

pytestmark = [
    pytest.mark.skipif(missing_tool() != "", reason=missing_tool()),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def outcome_of() -> Callable[[Case], str]:
    """All cases, searched at the same time."""
    outcomes = start()
    return lambda case: outcomes[case].result()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_model(case: Case, outcome_of: Callable[[Case], str]) -> None:
    assert outcome_of(case)
