"""all_reduce: every dtype, reduction, size, layout and form, to the bit."""

from __future__ import annotations

import importlib
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

HOWS = ("sync", "async", "coalesced", "out", "flat", "tree")


@dataclass(frozen=True)
class Case:
    """One call; `how` names the form, of which the last three are dda's own function."""

    dtype: torch.dtype
    op: str
    shape: tuple[int, ...]
    layouts: tuple[str, ...] = ("plain",)
    how: str = "sync"
    seed: int = 0


def check(rank: int, world: int, case: Case) -> None:
    inputs = [values(case.shape, case.dtype, case.seed, r) for r in range(world)]
    given = place(inputs[rank], case.layouts[rank % len(case.layouts)])
    want = reduced(inputs, case.op)
    # dda's own functions take no factor.
    how = "sync" if case.op == "premul_sum" and case.how in ("out", "flat", "tree") else case.how
    if how == "out":
        out = blank(case.shape, case.dtype, case.layouts[-1])
        importlib.import_module("dda").all_reduce(given.view, op=case.op, out=out.view)
        given.assert_untouched("the input")
        given = out
    elif how in ("flat", "tree"):
        dda = importlib.import_module("dda")
        dda.all_reduce(given.view, op=case.op, out=given.view, algorithm=how)
    elif how == "coalesced":
        with dist._coalescing_manager(device=c.device()):
            dist.all_reduce(given.view, c.torch_op(case.op))
    else:
        work = dist.all_reduce(given.view, c.torch_op(case.op), async_op=how == "async")
        if work is not None:
            work.wait()
    assert_same_bits(given.view, want)
    given.assert_guards()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_dtype_and_reduction(world: int) -> None:
    pairs = [(d, op) for d in REDUCED for op in OPS if is_defined(op, d)]
    counts = c.COUNTS if world < 4 else c.COUNTS[::3]
    run_cases = [
        Case(d, op, (n,), how=HOWS[(i + n) % len(HOWS)], seed=i)
        for i, (d, op) in enumerate(pairs)
        for n in counts
    ]
    c.run_cases(check, world, run_cases)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("how", ["sync", "flat", "tree"])
def test_sizes_around_slots(world: int, how: str) -> None:
    some = (torch.float32, torch.bfloat16, torch.int8, torch.complex128)
    counts = [(d, n) for d in some for n in c.edge_counts(d.itemsize)]
    c.run_cases(check, world, [Case(d, "sum", (n,), how=how, seed=n) for d, n in counts])


def test_many_ranks() -> None:
    counts = (0, 1, 7, 1021, 3000)
    c.run_cases(
        check,
        8,
        [Case(torch.bfloat16, "sum", (n,), how=how) for n in counts for how in ("flat", "tree")],
    )


@pytest.mark.parametrize("world", [2, 3, 5])
@given(
    lists=c.lists_of(
        st.builds(
            lambda pair, *rest: Case(*pair, *rest),
            c.REDUCTIONS, c.SHAPES, c.LAYOUTS, st.sampled_from(HOWS), c.SEEDS,
        )
    )
)  # fmt: skip
@c.few_lists
def test_any_calls_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_F09_strided_inputs_and_outputs() -> None:
    shapes = ((5,), (4, 7), (33, 65), (2, 3, 5), (3000,))
    c.run_cases(
        check,
        2,
        [
            Case(d, "sum", shape, layouts, how)
            for d in (torch.float32, torch.bfloat16, torch.int64)
            for shape in shapes
            for layouts in c.ALL_LAYOUTS
            for how in HOWS
        ],
    )


def test_F37_any_alignment_and_every_small_size() -> None:
    c.run_cases(
        check,
        2,
        [
            Case(d, "sum", (n,), layouts, how)
            for d in (torch.uint8, torch.bfloat16, torch.float32)
            for n in range(68)
            for layouts in (("plain",), ("offset",), ("plain", "offset"))
            for how in ("flat", "tree")
        ],
    )


def expanded(rank: int, world: int) -> str:
    column = torch.full((4, 1), float(rank + 1))
    shared = column.expand(4, 3)
    message = c.message_of(lambda: dist.all_reduce(shared))
    assert torch.equal(column, torch.full((4, 1), float(rank + 1))), "the tensor was written"
    # As an input it is fine.
    out = torch.empty(4, 3)
    importlib.import_module("dda").all_reduce(shared, out=out)
    assert torch.equal(out, torch.full((4, 3), 3.0)), out
    return message


def test_F09_expanded_output_is_refused_and_expanded_input_is_read() -> None:
    for message in run_ranks(expanded, 2):
        assert "all_reduce" in message and "expanded" in message


def undefined(rank: int, world: int) -> None:
    for dtype in DTYPES:
        for op in OPS:
            if is_defined(op, dtype) or (dtype.is_complex and op == "product"):
                continue
            if dtype == torch.complex32 and op in ("sum", "avg", "premul_sum"):
                continue  # torch passes it as pairs of float16
            mine = place(values((5,), dtype, 1, rank))
            message = c.message_of(lambda: dist.all_reduce(mine.view, c.torch_op(op)))  # noqa: B023
            # torch itself refuses some reductions of complex numbers, in words of its own.
            kind = "complex" if dtype.is_complex else str(dtype).removeprefix("torch.")
            assert op in message.lower() and kind in message, message
            mine.assert_untouched(f"{op} of {dtype}")
    x = torch.ones(3)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), float(world)))


def test_reductions_without_meaning_raise_and_write_nothing() -> None:
    run_ranks(undefined, 2)


def zero_elements(rank: int, world: int) -> None:
    for shape in ((0,), (1, 0, 2), (7, 0)):
        x = torch.empty(shape)
        dist.all_reduce(x)
        assert x.shape == shape
    dist.barrier()


@pytest.mark.parametrize("world", [1, 3])
def test_F13_empty_tensors_keep_their_shape(world: int) -> None:
    run_ranks(zero_elements, world)


def new_result(rank: int, world: int) -> None:
    dda = importlib.import_module("dda")
    x = torch.full((2, 3), float(rank))
    y = dda.all_reduce(x)
    assert torch.equal(y, torch.full((2, 3), 3.0)) and torch.equal(x, torch.full((2, 3), rank))


def test_without_out_the_result_is_new() -> None:
    run_ranks(new_result, 3)
