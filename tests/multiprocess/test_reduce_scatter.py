"""reduce_scatter: lists, one tensor, coalesced, in place, equal and unequal parts."""

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
    blank,
    is_defined,
    place,
    reduced,
    values,
)

HOWS = ("list", "list_async", "tensor", "tensor_async", "coalesced", "in_place", "uneven")


@dataclass(frozen=True)
class Case:
    """One call; `shape` is what each rank receives, `how` is one of HOWS."""

    dtype: torch.dtype
    op: str
    shape: tuple[int, ...]
    how: str = "tensor"
    layouts: tuple[str, ...] = ("plain",)
    seed: int = 0


def part_shape(case: Case, rank: int) -> tuple[int, ...]:
    if case.how != "uneven":
        return case.shape
    return (sum(case.shape) * ((rank + case.seed) % 3),)


def check(rank: int, world: int, case: Case) -> None:
    # parts[r][p]: what rank r contributes to what rank p receives.
    parts = [
        [
            values(part_shape(case, p), case.dtype, case.seed * world + p, r)
            for p in range(world)
        ]
        for r in range(world)
    ]  # fmt: skip
    want = reduced([parts[r][rank] for r in range(world)], case.op)
    op = c.torch_op(case.op)
    layout = case.layouts[rank % len(case.layouts)]
    out = blank(part_shape(case, rank), case.dtype, layout)
    if case.how.startswith(("list", "uneven")):
        ins = [
            place(parts[rank][p], case.layouts[(rank + p) % len(case.layouts)])
            for p in range(world)
        ]
        views = [i.view for i in ins]
        work = dist.reduce_scatter(out.view, views, op, async_op=case.how.endswith("c"))
        if work is not None:
            work.wait()
        for p, part in enumerate(ins):
            part.assert_untouched(f"input {p}")
    elif case.how == "in_place":
        whole = place(torch.stack(parts[rank]))
        dist.reduce_scatter_tensor(whole.view[rank], whole.view, op)
        for p in range(world):
            assert_same_bits(whole.view[p], want if p == rank else parts[rank][p], f"part {p}")
        return
    else:
        whole = place(torch.stack(parts[rank]), layout)
        if case.how == "coalesced":
            with dist._coalescing_manager(device=c.device()):
                dist.reduce_scatter_tensor(out.view, whole.view, op)
        else:
            is_async = case.how.endswith("c")
            work = dist.reduce_scatter_tensor(out.view, whole.view, op, async_op=is_async)
            if work is not None:
                work.wait()
        whole.assert_untouched("the input")
    assert_same_bits(out.view, want)
    out.assert_guards()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_dtype_and_reduction(world: int) -> None:
    pairs = [(d, op) for d in REDUCED for op in OPS if is_defined(op, d)]
    c.run_cases(
        check,
        world,
        [
            Case(d, op, (n,), HOWS[(i + n) % len(HOWS)], seed=i)
            for i, (d, op) in enumerate(pairs)
            for n in c.COUNTS[i % 3 :: 3]
        ],
    )


@pytest.mark.parametrize("world", [2, 3])
def test_sizes_around_slots(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, "sum", (n,), how, seed=n)
            for d in (torch.float32, torch.bfloat16)
            for n in c.edge_counts(d.itemsize)
            for how in ("list", "tensor", "in_place", "uneven")
        ],
    )


@pytest.mark.parametrize("world", [3, 4])
@given(
    lists=c.lists_of(
        st.builds(
            lambda pair, *rest: Case(*pair, *rest),
            c.REDUCTIONS, c.SHAPES, st.sampled_from(HOWS), c.LAYOUTS, c.SEEDS,
        )
    )
)  # fmt: skip
@c.few_lists
def test_any_calls_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_F09_strided_inputs_and_outputs() -> None:
    c.run_cases(
        check,
        2,
        [
            Case(d, "sum", shape, how, layouts)
            for d in (torch.float32, torch.bfloat16)
            for shape in ((5,), (4, 7), (2, 3, 5), (3000,))
            for how in ("list", "tensor", "coalesced", "uneven")
            for layouts in c.ALL_LAYOUTS
        ],
    )


def test_F13_empty_tensors() -> None:
    shapes = ((0,), (1, 0, 2), (7, 0))
    c.run_cases(check, 3, [Case(torch.float32, "sum", s, how) for s in shapes for how in HOWS])


def wrong_calls(rank: int, world: int) -> None:
    out = torch.zeros(4)
    for dtype in DTYPES:
        for op in OPS:
            if not is_defined(op, dtype) and not (dtype.is_complex and op == "product"):
                mine = torch.zeros(world, dtype=dtype)
                to = torch.ones(1).to(dtype) if dtype != torch.complex32 else mine[:1].clone()
                call = lambda: dist.reduce_scatter_tensor(to, mine, c.torch_op(op))  # noqa: B023, E731
                assert op in c.message_of(call)
    assert c.message_of(lambda: dist.reduce_scatter_tensor(out, torch.ones(4 * world + 1)))
    assert c.message_of(lambda: dist.reduce_scatter(out, [torch.ones(4)] * (world + 1)))
    assert torch.equal(out, torch.zeros(4))
    dist.reduce_scatter_tensor(out, torch.ones(4 * world))
    assert torch.equal(out, torch.full((4,), float(world)))


def test_wrong_calls_raise_and_the_group_goes_on() -> None:
    run_ranks(wrong_calls, 2)
