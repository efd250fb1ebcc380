"""broadcast: every dtype, size, root and layout."""

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
    want = values(case.shape, case.dtype, case.seed, 0)
    root = case.root % world
    layout = case.layouts[rank % len(case.layouts)]
    mine = place(want, layout) if rank == root else blank(case.shape, case.dtype, layout)
    work = dist.broadcast(mine.view, root, async_op=case.is_async)
    if work is not None:
        work.wait()
    assert_same_bits(mine.view, want)
    mine.assert_guards()


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


@pytest.mark.parametrize("world", [2, 3])
def test_sizes_around_slots_do_not_outrun_the_reader(world: int) -> None:
    # The root of many calls in a row never waits for data: it must still not overrun its slots.
    sizes = c.edge_counts(1)
    c.run_cases(
        check, world, [Case(torch.uint8, (n,), seed=n + k) for n in sizes for k in range(3)]
    )


@pytest.mark.parametrize("world", [2, 5])
@given(
    lists=c.lists_of(
        st.builds(
            Case,
            st.sampled_from(DTYPES), c.SHAPES, st.integers(0, 4), c.LAYOUTS, st.booleans(), c.SEEDS,
        )
    )
)  # fmt: skip
@c.few_lists
def test_any_calls_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_F09_strided_tensors() -> None:
    c.run_cases(
        check,
        2,
        [
            Case(d, shape, layouts=layouts)
            for d in (torch.float32, torch.uint8, torch.float8_e4m3fn, torch.complex64)
            for shape in ((5,), (4, 7), (2, 3, 5), (3000,))
            for layouts in c.ALL_LAYOUTS
        ],
    )


def objects(rank: int, world: int) -> object:
    box = [{"from": rank}, "x" * 10_000] if rank == 1 else [None, None]
    dist.broadcast_object_list(box, src=1)
    return box


def test_objects() -> None:
    assert run_ranks(objects, 3) == [[{"from": 1}, "x" * 10_000]] * 3
