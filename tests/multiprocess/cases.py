"""Which calls to try: sizes, shapes, and how many of them are run by one set of ranks.

A case is a frozen dataclass of its test file; `check(rank, world, case)` makes one call and looks
at its result. `run_cases` hands a whole list of cases to each set of ranks, because starting ranks
costs more than a call. Hypothesis draws such lists, so what it shrinks is a list of calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.multiprocess import reference
from tests.multiprocess.harness import device as device
from tests.multiprocess.harness import run_ranks

SLOT_BYTES = 4096  # so that small tensors are already cut into chunks
SMALL_SLOTS = {"DDA_SLOT_BYTES": str(SLOT_BYTES)}

# Counts around vector widths and powers of two, primes, and nothing.
COUNTS = (0, 1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33, 61, 64, 127, 129, 251, 1021, 1024)
# Bytes around one slot, around several, and around what all blocks hold together.
EDGES = (SLOT_BYTES, 2 * SLOT_BYTES, 5 * SLOT_BYTES, 16 * SLOT_BYTES, 64 * SLOT_BYTES)

SHAPES = st.one_of(
    st.sampled_from(COUNTS).map(lambda n: (n,)),
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.tuples(st.integers(1, 40), st.integers(1, 90)),
    st.integers(1, 3 * SLOT_BYTES).map(lambda n: (n,)),
)
SEEDS = st.integers(0, 10_000)
# The layouts of ranks 0, 1, …, over again where there are more ranks than layouts.
LAYOUTS = st.lists(st.sampled_from(reference.LAYOUTS), min_size=1, max_size=3).map(tuple)
ALL_LAYOUTS = [(layout,) for layout in reference.LAYOUTS] + [reference.LAYOUTS]
DTYPES = st.sampled_from(reference.DTYPES)
REDUCTIONS = st.sampled_from(
    [(d, op) for d in reference.REDUCED for op in reference.OPS if reference.is_defined(op, d)]
)

# How much hypothesis tries: each example is a list of calls on a fresh set of ranks.
few_lists = settings(
    max_examples=int(os.environ.get("TEST_EXAMPLES", "5")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def lists_of(cases: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of cases, long enough to be worth their ranks."""
    return st.lists(cases, min_size=1, max_size=60)


def edge_counts(itemsize: int) -> list[int]:
    """Counts of elements of `itemsize` bytes just below, at and above each of EDGES."""
    return [edge // itemsize + d for edge in EDGES for d in (-1, 0, 1)]


def torch_op(op: str) -> Any:
    """The object of torch for one of reference.OPS."""
    if op == "premul_sum":
        return dist._make_nccl_premul_sum(reference.SCALE)
    return getattr(dist.ReduceOp, op.upper())


def run_cases(
    check: Callable[[int, int, Any], None], world: int, cases: Sequence[Any], **options: Any
) -> None:
    """Runs `check(rank, world, case)` for each case in turn, on one set of ranks.

    Raises:
        RankFailed: naming the case that failed.
    """
    options.setdefault("env", SMALL_SLOTS)
    run_ranks(_check_all, world, check, list(cases), **options)


def _check_all(rank: int, world: int, check: Callable[..., None], cases: list[Any]) -> None:
    for i, case in enumerate(cases):
        try:
            check(rank, world, case)
        except Exception as error:
            raise AssertionError(f"case {i} of {len(cases)}, {case}: {error}") from error


def message_of(call: Callable[[], object]) -> str:
    """Returns the message of the error that `call` raises.

    Raises:
        AssertionError: if it raises none.
    """
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    raise AssertionError("no error was raised")
