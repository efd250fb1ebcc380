"""Several calls as one: the coalescing manager and batch_isend_irecv.

After each block a plain all_reduce must be right: a group that stays marked as coalescing would
silently do nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.multiprocess.harness import BACKEND, run_ranks

CPU = torch.device("cpu")
# Gloo coalesces neither through start and end, nor all_reduces of several dtypes, nor lists that
# differ in length.
needs_dda = pytest.mark.skipif(BACKEND == "gloo", reason="gloo does not have it")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.float32)
SHAPES = ((6,), (3, 4), (0,), (3, 1))


def number(rank: int, i: int) -> int:
    """What rank fills the i-th tensor with."""
    return rank + 10 * i + 1


def filled(rank: int, dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    return [
        torch.full(shape, number(rank, i), dtype=dtype)
        for i, (shape, dtype) in enumerate(zip(SHAPES, dtypes, strict=True))
    ]


def assert_plain_call_works(world: int) -> None:
    x = torch.ones(5)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((5,), float(world)))


class Manager:
    """The coalescing manager in one of its forms; outputs are ready when the block is left."""

    def __init__(self, is_async: bool, device: torch.device | None) -> None:
        self._is_async = is_async
        self._context = _coalescing_manager(device=device, async_ops=is_async)

    def __enter__(self) -> None:
        self._manager = self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)
        if self._is_async:
            self._manager.wait()


Form = tuple[bool, torch.device | None]
FORMS = [
    pytest.param((is_async, device), marks=[needs_dda] if device else [])
    for is_async in (False, True)
    for device in (None, CPU)
]
MIXED = [
    pytest.param((torch.float32,) * 4, id="float32"),
    pytest.param(DTYPES, id="mixed", marks=needs_dda),
]


def all_reduce(rank: int, world: int, form: Form, dtypes: tuple[torch.dtype, ...]) -> None:
    tensors = filled(rank, dtypes)
    with Manager(*form):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, tensor in enumerate(tensors):
        total = sum(number(r, i) for r in range(world))
        assert torch.equal(tensor, torch.full_like(tensor, total)), i
    assert_plain_call_works(world)


def all_gather(rank: int, world: int, form: Form, dtypes: tuple[torch.dtype, ...]) -> None:
    tensors = filled(rank, dtypes)
    outs = [t.new_full((world * len(t), *t.shape[1:]), -1) for t in tensors]
    with Manager(*form):
        for out, tensor in zip(outs, tensors, strict=True):
            dist.all_gather_into_tensor(out, tensor)
    for i, out in enumerate(outs):
        for r, part in enumerate(out.chunk(world)):
            assert torch.equal(part, torch.full_like(part, number(r, i))), (i, r)
    assert_plain_call_works(world)


def reduce_scatter(rank: int, world: int, form: Form, dtypes: tuple[torch.dtype, ...]) -> None:
    outs = filled(-1, dtypes)
    inputs = [
        torch.cat([torch.full_like(out, number(rank, i) * (r + 1)) for r in range(world)])
        for i, out in enumerate(outs)
    ]
    with Manager(*form):
        for out, tensor in zip(outs, inputs, strict=True):
            dist.reduce_scatter_tensor(out, tensor)
    for i, out in enumerate(outs):
        total = sum(number(r, i) for r in range(world)) * (rank + 1)
        assert torch.equal(out, torch.full_like(out, total)), i
    assert_plain_call_works(world)


@pytest.mark.parametrize("form", FORMS, ids=["sync", "sync-device", "async", "async-device"])
@pytest.mark.parametrize("dtypes", MIXED)
@pytest.mark.parametrize(
    "case", [all_reduce, all_gather, reduce_scatter], ids=lambda case: case.__name__
)
def test_coalescing_manager(
    case: Callable[..., None], form: Form, dtypes: tuple[torch.dtype, ...]
) -> None:
    run_ranks(case, 2, form, dtypes)


def empty_block(rank: int, world: int) -> None:
    for is_async in (False, True):
        with _coalescing_manager(async_ops=is_async):
            pass
        assert_plain_call_works(world)


def test_empty_block() -> None:
    run_ranks(empty_block, 2)


def empty_block_with_device(rank: int, world: int) -> None:
    with Manager(False, CPU):
        pass
    assert_plain_call_works(world)
    with Manager(True, CPU):
        pass
    assert_plain_call_works(world)


@needs_dda
def test_empty_block_with_device() -> None:
    run_ranks(empty_block_with_device, 2)


def sends_in_a_block(rank: int, world: int) -> None:
    got = torch.zeros(3)
    with Manager(False, CPU):
        send = dist.isend(torch.full((3,), float(rank)), (rank + 1) % world)
        receive = dist.irecv(got, (rank - 1) % world)
    for work in (send, receive):
        if work is not None:
            work.wait()
    assert torch.equal(got, torch.full((3,), float((rank - 1) % world)))
    assert_plain_call_works(world)


@needs_dda
def test_sends_in_a_block() -> None:
    run_ranks(sends_in_a_block, 3)


def broken_block(rank: int, world: int) -> None:
    try:
        with _coalescing_manager():
            dist.all_reduce(torch.ones(2))
            dist.all_gather_into_tensor(torch.ones(2 * world), torch.ones(2))
    except RuntimeError as error:
        assert "same type" in str(error)
    else:  # torch itself refuses, if it is new enough
        assert torch.__version__ < (2, 12), "a mixed block was accepted"
    assert_plain_call_works(world)


def test_block_of_different_calls_is_refused() -> None:
    run_ranks(broken_block, 2)


def ring(rank: int, world: int) -> None:
    """Each rank sends to both neighbours; odd ranks list their calls backwards."""
    after, before = (rank + 1) % world, (rank - 1) % world
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):

        def mine(r: int, d: torch.dtype = dtype) -> torch.Tensor:
            return torch.arange(r, r + 7).to(d)

        from_before, from_after = torch.empty(7, dtype=dtype), torch.empty(7, dtype=dtype)
        calls = [
            dist.P2POp(dist.isend, mine(rank), after, tag=1),
            dist.P2POp(dist.isend, mine(rank + 100), before, tag=2),
            dist.P2POp(dist.irecv, from_before, before, tag=1),
            dist.P2POp(dist.irecv, from_after, after, tag=2),
        ]
        for work in dist.batch_isend_irecv(calls if rank % 2 == 0 else calls[::-1]):
            work.wait()
        assert torch.equal(from_before, mine(before)), dtype
        assert torch.equal(from_after, mine(after + 100)), dtype
    assert_plain_call_works(world)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_batch_isend_irecv(world: int) -> None:
    run_ranks(ring, world)


def subgroup_ring(rank: int, world: int) -> None:
    group = dist.new_group([0, 2])
    if rank == 1:
        return
    got = torch.empty(4)
    other = 1 - dist.get_rank(group)
    calls = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), group=group, group_peer=other),
        dist.P2POp(dist.irecv, got, group=group, group_peer=other),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    assert torch.equal(got, torch.full((4,), 2.0 - rank))


def test_batch_in_a_subgroup() -> None:
    run_ranks(subgroup_ring, 3)
