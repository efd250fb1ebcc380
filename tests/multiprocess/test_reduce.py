"""reduce: every dtype and reduction, every root; nobody but the root is written (F14)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.multiprocess import cases as c
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.reference import (
    DTYPES,
    OPS,
    REDUCED,
    assert_same_bits,
    is_defined,
    place,
    reduced,
    values,
)


@dataclass(frozen=True)
class Case:
    """One call; the root is `root` modulo the number of ranks."""

    dtype: torch.dtype
    op: str
    shape: tuple[int, ...]
    root: int
    layouts: tuple[str, ...] = ("plain",)
    is_async: bool = False
    seed: int = 0


def check(rank: int, world: int, case: Case) -> None:
    inputs = [values(case.shape, case.dtype, case.seed, r) for r in range(world)]
    mine = place(inputs[rank], case.layouts[rank % len(case.layouts)])
    root = case.root % world
    work = dist.reduce(mine.view, root, c.torch_op(case.op), async_op=case.is_async)
    if work is not None:
        work.wait()
    if rank != root:
        mine.assert_untouched("a rank that is not the root")
        return
    assert_same_bits(mine.view, reduced(inputs, case.op))
    mine.assert_guards()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_dtype_and_reduction(world: int) -> None:
    pairs = [(d, op) for d in REDUCED for op in OPS if is_defined(op, d)]
    c.run_cases(
        check,
        world,
        [
            Case(d, op, (n,), root=i + n, is_async=n % 2 == 1, seed=i)
            for i, (d, op) in enumerate(pairs)
            for n in c.COUNTS[::2]
        ],
    )


@pytest.mark.parametrize("world", [2, 4])
def test_sizes_around_slots(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, "sum", (n,), root=n, seed=n)
            for d in (torch.float32, torch.bfloat16, torch.int8)
            for n in c.edge_counts(d.itemsize)
        ],
    )


@pytest.mark.parametrize("world", [3, 4])
@given(
    lists=c.lists_of(
        st.builds(
            lambda pair, *rest: Case(*pair, *rest),
            c.REDUCTIONS, c.SHAPES, st.integers(0, 3), c.LAYOUTS, st.booleans(), c.SEEDS,
        )
    )
)  # fmt: skip
@c.few_lists
def test_any_calls_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_F09_strided_tensors() -> None:
    c.run_cases(
        check,
        3,
        [
            Case(d, "sum", shape, 1, layouts)
            for d in (torch.float32, torch.bfloat16)
            for shape in ((5,), (4, 7), (2, 3, 5), (3000,))
            for layouts in c.ALL_LAYOUTS
        ],
    )


def test_F14_ranks_that_are_not_the_root_are_untouched() -> None:
    c.run_cases(check, 3, [Case(torch.float32, "sum", (n,), 1) for n in (1, 100, 100_000)])


def wrong_calls(rank: int, world: int) -> None:
    for dtype in DTYPES:
        for op in OPS:
            if not is_defined(op, dtype) and not (dtype.is_complex and op == "product"):
                mine = place(values((5,), dtype, 1, rank))
                call = lambda: dist.reduce(mine.view, 0, c.torch_op(op))  # noqa: B023, E731
                assert op in c.message_of(call)
                mine.assert_untouched(f"{op} of {dtype}")
    x = torch.ones(3)
    assert "root" in c.message_of(lambda: dist.reduce(x, world)) or world == 1
    dist.reduce(x, 0)
    assert torch.equal(x, torch.full((3,), float(world) if rank == 0 else 1.0))


def test_wrong_reductions_and_roots_raise_and_write_nothing() -> None:
    run_ranks(wrong_calls, 2)
