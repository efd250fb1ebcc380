"""all_to_all: lists and one tensor, equal and uneven splits, in place, and splits that lie."""

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

HOWS = ("list", "single", "single_async", "in_place")


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        rows: rank r sends rows[r][p] rows to rank p, both modulo the length of the list; one number
            stands for equal parts without split sizes.
        row: the shape of a row.
        how: one of HOWS; "list" and "in_place" need no splits.
    """

    dtype: torch.dtype
    rows: int | tuple[tuple[int, ...], ...]
    row: tuple[int, ...] = ()
    how: str = "single"
    layouts: tuple[str, ...] = ("plain",)
    seed: int = 0

    def count(self, r: int, p: int) -> int:
        """How many rows rank r sends to rank p."""
        if isinstance(self.rows, int):
            return self.rows
        return self.rows[r % len(self.rows)][p % len(self.rows)]


def check(rank: int, world: int, case: Case) -> None:
    part = lambda r, p: values(  # noqa: E731
        (case.count(r, p), *case.row), case.dtype, case.seed * world + p, r
    )
    sent = [part(rank, p) for p in range(world)]
    want = [part(r, rank) for r in range(world)]
    layout = case.layouts[rank % len(case.layouts)]
    if case.how == "list":
        ins = [place(x, case.layouts[p % len(case.layouts)]) for p, x in enumerate(sent)]
        outs = [blank(x.shape, case.dtype, layout) for x in want]
        dist.all_to_all([o.view for o in outs], [i.view for i in ins])
        for p in range(world):
            assert_same_bits(outs[p].view, want[p], f"from rank {p}")
            outs[p].assert_guards()
            ins[p].assert_untouched("the input")
        return
    if case.how == "in_place" and isinstance(case.rows, int):
        both = place(torch.cat(sent))
        dist.all_to_all_single(both.view, both.view)
        assert_same_bits(both.view, torch.cat(want))
        return
    given = place(torch.cat(sent), layout)
    out = blank(torch.cat(want).shape, case.dtype, layout)
    splits: list[list[int] | None] = [None, None]
    if not isinstance(case.rows, int):
        splits = [[x.shape[0] for x in want], [x.shape[0] for x in sent]]
    is_async = case.how == "single_async"
    work = dist.all_to_all_single(out.view, given.view, *splits, async_op=is_async)
    if work is not None:
        work.wait()
    assert_same_bits(out.view, torch.cat(want))
    out.assert_guards()
    given.assert_untouched("the input")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_dtype_and_form(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, n, how=how, seed=i)
            for i, d in enumerate(DTYPES)
            for n in c.COUNTS[i % 3 :: 3]
            for how in HOWS
        ],
    )


UNEVEN = (
    ((4, 0, 1), (1, 2, 2), (0, 3, 1)),
    ((0, 0, 0), (0, 0, 0), (0, 0, 0)),
    ((0, 9, 0), (0, 0, 9), (9, 0, 0)),
    ((0, 0, 0), (700, 1, 0), (0, 0, 0)),
    ((1, 1, 1), (1, 1, 5000), (1, 1, 1)),
)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_F11_uneven_splits_and_zeros(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, rows, row, how, layouts)
            for d in (torch.float32, torch.uint8, torch.bfloat16)
            for rows in UNEVEN
            for row in ((), (3,), (2, 0))
            for how in ("single", "single_async", "list")
            for layouts in (("plain",), ("offset", "strided"))
        ],
    )


@pytest.mark.parametrize("world", [2, 3])
def test_sizes_around_slots(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(torch.uint8, rows, how=how, seed=n)
            for n in c.edge_counts(1)
            for rows in (n, ((n, 0, 1), (1, n, 0), (0, 1, n)))
            for how in ("single", "list")
        ],
    )


splits = st.integers(1, 4).flatmap(
    lambda k: st.lists(
        st.lists(st.integers(0, 300), min_size=k, max_size=k).map(tuple), min_size=k, max_size=k
    ).map(tuple)
)


@pytest.mark.parametrize("world", [3, 5])
@given(
    lists=c.lists_of(
        st.builds(
            Case,
            st.sampled_from(DTYPES),
            st.one_of(st.integers(0, 900), splits),
            st.lists(st.integers(0, 5), max_size=2).map(tuple),
            st.sampled_from(HOWS),
            c.LAYOUTS,
            c.SEEDS,
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
            Case(torch.float32, rows, row, how, layouts)
            for rows in (3, 1000, UNEVEN[0])
            for row in ((), (5,), (2, 3))
            for how in ("single", "list")
            for layouts in c.ALL_LAYOUTS
        ],
    )


def bad_splits(rank: int, world: int) -> None:
    x, out = torch.ones(3), torch.zeros(3)
    calls = [
        lambda: dist.all_to_all_single(out, x),  # 3 rows, 2 ranks
        lambda: dist.all_to_all_single(out, x, [1, 2], [1, 1, 1]),
        lambda: dist.all_to_all_single(out, x, [-1, 4], [-1, 4]),
        lambda: dist.all_to_all_single(out, x, [1, 1], [1, 1]),
    ]
    for call in calls:
        message = c.message_of(call)
        assert "split" in message or "divi" in message, message
    assert torch.equal(out, torch.zeros(3))
    full = torch.empty(4)
    dist.all_to_all_single(full, torch.full((4,), float(rank)))
    assert torch.equal(full, torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_F10_splits_that_do_not_fit_raise_and_the_group_goes_on() -> None:
    run_ranks(bad_splits, 2)


def one_bad_rank(rank: int, world: int) -> str:
    x, out = torch.ones(4), torch.zeros(4)
    wrong = [1, 1] if rank == 0 else [2, 2]
    message = c.message_of(lambda: dist.all_to_all_single(out, x, wrong, wrong))
    assert torch.equal(out, torch.zeros(4))
    dist.all_to_all_single(out, x)
    assert torch.equal(out, x)
    return message


@pytest.mark.cpu
def test_F10_the_peers_of_a_rank_with_bad_splits_fail_fast() -> None:
    messages = run_ranks(one_bad_rank, 2, timeout=20, group_timeout=600)
    assert "split" in messages[0]
    assert "rank 0" in messages[1] and "split" in messages[1], messages[1]


def receiver_off_by_one(rank: int, world: int) -> str:
    sent, expected = UNEVEN[0][rank], [UNEVEN[0][r][rank] for r in range(world)]
    if rank == 2:
        expected[1] += 1
    out = torch.zeros(sum(expected), 2)
    message = c.message_of(
        lambda: dist.all_to_all_single(out, torch.ones(sum(sent), 2), expected, list(sent))
    )
    assert torch.equal(out, torch.zeros_like(out)), "the output was written"
    dist.barrier()
    return message


@pytest.mark.cpu
def test_F11_unmatched_splits_name_the_pair_and_both_counts() -> None:
    for message in run_ranks(receiver_off_by_one, 3, timeout=20, group_timeout=600):
        # Rank 1 sends 2 rows of 2 elements to rank 2, which expects 3.
        assert "rank 1" in message and "rank 2" in message, message
        assert "4" in message and "6" in message, message


def one_rank_empty(rank: int, world: int) -> None:
    sent = [0] * world if rank == 1 else [2] * world
    got = [0 if r == 1 else 2 for r in range(world)]
    out = torch.zeros(sum(got))
    dist.all_to_all_single(out, torch.full((sum(sent),), float(rank)), got, sent)
    assert out.tolist() == [float(r) for r in range(world) if r != 1 for _ in range(2)]
    dist.barrier()


def test_F13_one_rank_sends_nothing() -> None:
    run_ranks(one_rank_empty, 3)
