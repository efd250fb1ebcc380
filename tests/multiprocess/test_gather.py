"""gather: every dtype, size, root and layout; ranks other than the root are untouched."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.multiprocess import cases as c
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.reference import DTYPES, assert_same_bits, blank, place, values


@dataclass(frozen=True)
class Case:
    """One call; the root is `root` modulo the number of ranks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    root: int = 0
    layouts: tuple[str, ...] = ("plain",)
    is_async: bool = False
    seed: int = 0


def check(rank: int, world: int, case: Case) -> None:
    parts = [values(case.shape, case.dtype, case.seed, r) for r in range(world)]
    root = case.root % world
    mine = place(parts[rank], case.layouts[rank % len(case.layouts)])
    outs = [
        blank(case.shape, case.dtype, case.layouts[r % len(case.layouts)])
        for r in range(world if rank == root else 0)
    ]
    views = [o.view for o in outs] if rank == root else None
    work = dist.gather(mine.view, views, root, async_op=case.is_async)
    if work is not None:
        work.wait()
    for r, out in enumerate(outs):
        assert_same_bits(out.view, parts[r], f"part {r}")
        out.assert_guards(f"part {r}")
    mine.assert_untouched("the input")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_dtype_size_and_root(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, (n,), root=n + i, is_async=i % 3 == 0, seed=i)
            for i, d in enumerate(DTYPES)
            for n in (*c.COUNTS, *c.edge_counts(d.itemsize)[::3])
        ],
    )


@pytest.mark.parametrize("world", [3, 4])
@given(
    lists=c.lists_of(
        st.builds(
            Case,
            st.sampled_from(DTYPES), c.SHAPES, st.integers(0, 3), c.LAYOUTS, st.booleans(), c.SEEDS,
        )
    )
)  # fmt: skip
@c.few_lists
def test_any_calls_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_senders_do_not_outrun_the_root() -> None:
    # No sender waits for data: it must still not overrun what the root has not read.
    c.run_cases(check, 3, [Case(torch.uint8, (n,), seed=n) for n in c.edge_counts(1) * 2])


def test_F09_strided_inputs_and_outputs() -> None:
    c.run_cases(
        check,
        3,
        [
            Case(d, shape, 1, layouts)
            for d in (torch.float32, torch.int16)
            for shape in ((5,), (4, 7), (2, 3, 5), (3000,))
            for layouts in c.ALL_LAYOUTS
        ],
    )


def test_F13_empty_tensors() -> None:
    c.run_cases(check, 3, [Case(torch.float32, s) for s in ((0,), (1, 0, 2), (7, 0))])


def objects(rank: int, world: int) -> object:
    box = [None] * world if rank == 1 else None
    dist.gather_object({"rank": rank, "long": "z" * (4000 * rank)}, box, dst=1)
    return box


def test_objects() -> None:
    want = [{"rank": r, "long": "z" * (4000 * r)} for r in range(3)]
    assert run_ranks(objects, 3) == [None, want, None]
