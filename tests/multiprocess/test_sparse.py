"""all_reduce of sparse tensors."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.cases import message_of
from tests.multiprocess.harness import Ranks, listen, run_ranks, tell

SHAPE = (7, 2)


def mine(rank: int) -> torch.Tensor:
    """Rank r has r + 1 values, the first of which all ranks have too."""
    rows = torch.arange(rank + 1).reshape(1, -1)
    return torch.sparse_coo_tensor(rows, torch.full((rank + 1, 2), rank + 1.0), SHAPE)


def total(world: int) -> torch.Tensor:
    return torch.stack([mine(r).to_dense() for r in range(world)]).sum(0)


def sums(rank: int, world: int) -> None:
    for is_async in (False, True):
        x = mine(rank)
        work = dist.all_reduce(x, async_op=is_async)
        if work is not None:
            work.wait()
            assert work.result()[0].is_sparse
        assert x.is_sparse and torch.equal(x.to_dense(), total(world))
    assert "max" in message_of(lambda: dist.all_reduce(mine(rank), dist.ReduceOp.MAX))
    x = mine(0)
    dist.all_reduce(x)
    assert torch.equal(x.to_dense(), world * mine(0).to_dense())


@pytest.mark.parametrize("world", [2, 3])
def test_sums(world: int) -> None:
    run_ranks(sums, world)


def start_alone(rank: int, world: int) -> None:
    """Rank 0 issues three calls before rank 1 issues any; the sparse one is the second."""
    if rank == 1:
        listen()
    first, x, last = torch.ones(3), mine(rank), torch.ones(3)
    works = [dist.all_reduce(t, async_op=True) for t in (first, x, last)]
    if rank == 0:
        assert not any(work.is_completed() for work in works)
        time.sleep(0.2)
        assert not works[1].is_completed()
        tell("started")
    # Without a wait, and in order.
    deadline = time.monotonic() + 20
    while not works[2].is_completed():
        assert time.monotonic() < deadline, "no progress without a wait"
        time.sleep(0.001)
    assert works[1].is_completed() and works[1].is_success()
    assert torch.equal(x.to_dense(), total(world))
    assert torch.equal(first, torch.full((3,), 2.0)) and torch.equal(last, first)


def test_F15_an_asynchronous_call_returns_before_the_peers_come() -> None:
    with Ranks(start_alone, 2, group_timeout=20) as ranks:
        ranks.hear(0, timeout=10)
        ranks.say(1)
        for outcome in ranks.join(30):
            assert outcome.ok, outcome.describe()


def raise_at_wait(rank: int, world: int) -> str:
    x = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (3 + rank,))
    work = dist.all_reduce(x, async_op=True)
    return message_of(work.wait)


def test_a_call_that_fails_raises_at_wait() -> None:
    for message in run_ranks(raise_at_wait, 2):
        assert "differ in shape" in message
