"""scatter: every dtype, size, root and layout."""

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
    out = blank(case.shape, case.dtype, case.layouts[rank % len(case.layouts)])
    ins = [
        place(part, case.layouts[r % len(case.layouts)])
        for r, part in enumerate(parts if rank == root else [])
    ]
    views = [i.view for i in ins] if rank == root else None
    work = dist.scatter(out.view, views, root, async_op=case.is_async)
    if work is not None:
        work.wait()
    assert_same_bits(out.view, parts[rank])
    out.assert_guards()
    for r, part in enumerate(ins):
        part.assert_untouched(f"part {r}")


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


def test_the_root_does_not_outrun_the_readers() -> None:
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
    box: list[object] = [None]
    everything = [{"for": r, "long": "w" * (3000 * r)} for r in range(world)]
    dist.scatter_object_list(box, everything if rank == 2 else None, src=2)
    return box[0]


def test_objects() -> None:
    assert run_ranks(objects, 3) == [{"for": r, "long": "w" * (3000 * r)} for r in range(3)]
