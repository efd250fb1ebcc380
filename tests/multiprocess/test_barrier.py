"""barrier: nobody leaves before everybody has come."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import run_ranks


def come_and_leave(rank: int, world: int) -> list[tuple[float, float]]:
    times = []
    for i in range(2 * world):
        if i % world == rank:
            time.sleep(0.02)
        came = time.monotonic()
        work = dist.barrier(async_op=i % 2 == 1)
        if work is not None:
            work.wait()
        times.append((came, time.monotonic()))
    return times


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_nobody_leaves_before_all_have_come(world: int) -> None:
    times = run_ranks(come_and_leave, world)
    for barrier in zip(*times, strict=True):
        assert max(came for came, _ in barrier) <= min(left for _, left in barrier)


def between_collectives(rank: int, world: int) -> None:
    for i in range(200):
        x = torch.full((i,), float(rank))
        dist.all_reduce(x)
        dist.barrier()
        assert torch.equal(x, torch.full((i,), world * (world - 1) / 2))


def test_between_collectives() -> None:
    run_ranks(between_collectives, 3)
