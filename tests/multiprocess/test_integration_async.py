"""Calls with async_op=True: their futures, their progress without a wait, their end."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import BACKEND, run_ranks

N = 5


def ones(rank: int) -> torch.Tensor:
    return torch.full((N,), rank + 1.0)


def start_all_reduce(rank: int, world: int) -> tuple[Any, list[torch.Tensor]]:
    x = ones(rank)
    return dist.all_reduce(x, async_op=True), [x]


def start_broadcast(rank: int, world: int) -> tuple[Any, list[torch.Tensor]]:
    x = ones(rank)
    return dist.broadcast(x, 1, async_op=True), [x]


def start_all_gather(rank: int, world: int) -> tuple[Any, list[torch.Tensor]]:
    outs = [torch.empty(N) for _ in range(world)]
    return dist.all_gather(outs, ones(rank), async_op=True), outs


def start_all_gather_into_tensor(rank: int, world: int) -> tuple[Any, list[torch.Tensor]]:
    out = torch.empty(world * N)
    return dist.all_gather_into_tensor(out, ones(rank), async_op=True), [out]


def start_reduce_scatter_tensor(rank: int, world: int) -> tuple[Any, list[torch.Tensor]]:
    out = torch.empty(N)
    return dist.reduce_scatter_tensor(out, ones(rank).repeat(world), async_op=True), [out]


def start_all_to_all_single(rank: int, world: int) -> tuple[Any, list[torch.Tensor]]:
    out = torch.empty(world * N)
    return dist.all_to_all_single(out, ones(rank).repeat(world), async_op=True), [out]


def expected(start: Callable[..., Any], world: int) -> torch.Tensor:
    """All output tensors as one, the same on every rank."""
    total = world * (world + 1) / 2
    if start in (start_all_reduce, start_reduce_scatter_tensor):
        return torch.full((N,), total)
    if start is start_broadcast:
        return ones(1)
    return torch.cat([ones(r) for r in range(world)])


STARTS = [
    start_all_reduce,
    start_broadcast,
    start_all_gather,
    start_all_gather_into_tensor,
    pytest.param(
        start_reduce_scatter_tensor,
        marks=pytest.mark.skipif(BACKEND == "gloo", reason="gloo's has no future, no is_completed"),
    ),
    start_all_to_all_single,
]


def wait(rank: int, world: int, start: Callable[..., Any]) -> None:
    work, outs = start(rank, world)
    work.wait()
    assert torch.equal(torch.cat(outs), expected(start, world))
    work.wait()  # harmless
    assert work.is_completed()
    assert work.is_success()


def future(rank: int, world: int, start: Callable[..., Any]) -> None:
    work, outs = start(rank, world)
    doubled = work.get_future().then(lambda f: [2 * t for t in flatten(f.value())])
    got = torch.cat(doubled.wait())
    assert torch.equal(got, 2 * expected(start, world)), got
    assert torch.equal(torch.cat(outs), expected(start, world))


def flatten(value: Any) -> list[torch.Tensor]:
    """The tensors of a future's value, which may be lists of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flatten(item)]


def poll(rank: int, world: int, start: Callable[..., Any]) -> None:
    """A call makes progress while nobody waits for it."""
    work, outs = start(rank, world)
    deadline = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < deadline, "no progress without a wait"
        time.sleep(0.001)
    assert torch.equal(torch.cat(outs), expected(start, world))
    work.wait()


def drop(rank: int, world: int, start: Callable[..., Any]) -> None:
    """The handle may go, and so may the tensors."""
    for _ in range(3):
        _, outs = start(rank, world)
    del outs
    gc.collect()
    work, outs = start(rank, world)
    work.wait()
    assert torch.equal(torch.cat(outs), expected(start, world))


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__.removeprefix("start_"))
@pytest.mark.parametrize("use", [wait, future, poll, drop], ids=lambda use: use.__name__)
def test_async(use: Callable[..., None], start: Callable[..., Any]) -> None:
    run_ranks(use, 2, start)


def many(rank: int, world: int) -> None:
    """Many outstanding calls end in order, mixed with synchronous ones."""
    tensors = [torch.full((i % 7 * 1000 + 1,), float(i + rank)) for i in range(60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.ones(3)
    dist.all_reduce(last)
    assert torch.equal(last, torch.full((3,), float(world)))
    assert works[0].is_completed()
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full_like(tensor, world * i + sum(range(world)))), i


@pytest.mark.parametrize("world", [2, 3])
def test_many_outstanding(world: int) -> None:
    run_ranks(many, world)


def chained(rank: int, world: int) -> None:
    """A future's callback starts the next collective."""
    first, second = ones(rank), ones(rank)
    future = dist.all_reduce(first, async_op=True).get_future()
    work = future.then(lambda _: dist.all_reduce(second, async_op=True)).wait()
    work.wait()
    total = torch.full((N,), world * (world + 1) / 2)
    assert torch.equal(first, total)
    assert torch.equal(second, total)


def test_callback_starts_a_collective() -> None:
    run_ranks(chained, 2)
