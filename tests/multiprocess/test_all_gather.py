"""all_gather: lists, one tensor, coalesced, in place, equal and unequal parts."""

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

HOWS = ("list", "list_async", "tensor", "tensor_async", "coalesced", "in_place", "uneven")


@dataclass(frozen=True)
class Case:
    """One call; `how` is one of HOWS."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    how: str = "tensor"
    layouts: tuple[str, ...] = ("plain",)
    seed: int = 0


def part_shape(case: Case, rank: int) -> tuple[int, ...]:
    if case.how != "uneven":
        return case.shape
    return (sum(case.shape) * ((rank + case.seed) % 3),)


def check(rank: int, world: int, case: Case) -> None:
    parts = [values(part_shape(case, r), case.dtype, case.seed, r) for r in range(world)]
    layout = case.layouts[rank % len(case.layouts)]
    mine = place(parts[rank], layout)
    if case.how.startswith(("list", "uneven")):
        outs = [
            blank(part_shape(case, r), case.dtype, case.layouts[(rank + r) % len(case.layouts)])
            for r in range(world)
        ]
        work = dist.all_gather([o.view for o in outs], mine.view, async_op=case.how.endswith("c"))
        if work is not None:
            work.wait()
        for r, out in enumerate(outs):
            assert_same_bits(out.view, parts[r], f"part {r}")
            out.assert_guards(f"part {r}")
        mine.assert_untouched("the input")
        return
    whole = torch.stack(parts)
    out = blank(whole.shape, case.dtype, "plain" if case.how == "in_place" else layout)
    if case.how == "in_place":
        out.view[rank].copy_(parts[rank])
        dist.all_gather_into_tensor(out.view, out.view[rank])
    elif case.how == "coalesced":
        with dist._coalescing_manager(device=c.device()):
            dist.all_gather_into_tensor(out.view, mine.view)
    else:
        work = dist.all_gather_into_tensor(out.view, mine.view, async_op=case.how.endswith("c"))
        if work is not None:
            work.wait()
    assert_same_bits(out.view, whole)
    out.assert_guards()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_dtype_and_form(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, (n,), how, seed=i + n)
            for i, d in enumerate(DTYPES)
            for n in c.COUNTS[i % 3 :: 3]
            for how in HOWS
        ],
    )


@pytest.mark.parametrize("world", [2, 3])
def test_sizes_around_slots(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, (n,), how, seed=n)
            for d in (torch.float32, torch.uint8)
            for n in c.edge_counts(d.itemsize)
            for how in ("list", "tensor", "in_place", "uneven")
        ],
    )


@pytest.mark.parametrize("world", [3, 5])
@given(
    lists=c.lists_of(
        st.builds(
            Case, st.sampled_from(DTYPES), c.SHAPES, st.sampled_from(HOWS), c.LAYOUTS, c.SEEDS
        )
    )
)
@c.few_lists
def test_any_calls_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_F09_strided_inputs_and_outputs() -> None:
    c.run_cases(
        check,
        2,
        [
            Case(d, shape, how, layouts)
            for d in (torch.float32, torch.bool)
            for shape in ((5,), (4, 7), (2, 3, 5), (3000,))
            for how in ("list", "tensor", "coalesced", "uneven")
            for layouts in c.ALL_LAYOUTS
        ],
    )


def test_F13_empty_tensors() -> None:
    c.run_cases(
        check, 3, [Case(torch.float32, s, how) for s in ((0,), (1, 0, 2), (7, 0)) for how in HOWS]
    )


def chunk_with_offset(rank: int, world: int) -> None:
    """F09: the input is a view into the middle of a tensor, the output a column of another."""
    block = torch.arange(60.0).reshape(6, 10) + 100 * rank
    wide = torch.zeros(world * 6, 3)
    dist.all_gather_into_tensor(wide[:, 1], block[:, 4])
    want = torch.cat([torch.arange(60.0).reshape(6, 10)[:, 4] + 100 * r for r in range(world)])
    assert torch.equal(wide[:, 1], want)
    assert torch.equal(wide[:, 0], torch.zeros(world * 6))
    shared = torch.full((1,), float(rank)).expand(5)  # stride 0
    out = torch.empty(world * 5)
    dist.all_gather_into_tensor(out, shared)
    assert torch.equal(out, torch.arange(float(world)).repeat_interleave(5))


def test_F09_columns_and_expanded_inputs() -> None:
    run_ranks(chunk_with_offset, 3)


def wrong_lists(rank: int, world: int) -> None:
    x = torch.ones(4)
    outs = [torch.zeros(4) for _ in range(world - 1)]
    assert "all_gather" in c.message_of(lambda: dist.all_gather(outs, x))
    assert c.message_of(lambda: dist.all_gather_into_tensor(torch.zeros(4 * world - 1), x))
    assert c.message_of(lambda: dist.all_gather_into_tensor(torch.zeros(4 * world).int(), x))
    assert all(torch.equal(o, torch.zeros(4)) for o in outs)
    gathered = [torch.zeros(4) for _ in range(world)]
    dist.all_gather(gathered, x)
    assert all(torch.equal(o, x) for o in gathered)


def test_wrong_lists_raise_and_the_group_goes_on() -> None:
    run_ranks(wrong_lists, 3)


def objects(rank: int, world: int) -> object:
    box: list[object] = [None] * world
    dist.all_gather_object(box, {"rank": rank, "long": "y" * (rank * 5000)})
    return box


def test_objects() -> None:
    want = [{"rank": r, "long": "y" * (r * 5000)} for r in range(3)]
    assert run_ranks(objects, 3) == [want] * 3
