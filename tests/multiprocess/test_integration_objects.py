"""Collectives of Python objects, whose pickles differ in length from rank to rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import run_ranks


def thing(rank: int) -> dict[str, Any]:
    return {"rank": rank, "text": "x" * (rank * 1000), "list": list(range(rank)), "none": None}


def all_gather_object(rank: int, world: int) -> None:
    got: list[Any] = [None] * world
    dist.all_gather_object(got, thing(rank))
    assert got == [thing(r) for r in range(world)]


def broadcast_object_list(rank: int, world: int) -> None:
    for root in range(world):
        objects = [thing(rank + i) for i in range(3)]
        dist.broadcast_object_list(objects, src=root)
        assert objects == [thing(root + i) for i in range(3)]


def gather_object(rank: int, world: int) -> None:
    for root in range(world):
        got = [None] * world if rank == root else None
        dist.gather_object(thing(rank), got, dst=root)
        assert got == ([thing(r) for r in range(world)] if rank == root else None)


def scatter_object_list(rank: int, world: int) -> None:
    for root in range(world):
        got: list[Any] = [None]
        given = [thing(r + root) for r in range(world)] if rank == root else [None] * world
        dist.scatter_object_list(got, given, src=root)
        assert got == [thing(rank + root)]


def send_object_list(rank: int, world: int) -> None:
    if rank == 0:
        dist.send_object_list([thing(3), thing(1)], dst=world - 1)
    if rank == world - 1:
        got: list[Any] = [None, None]
        source = dist.recv_object_list(got, src=0)
        assert (source, got) == (0, [thing(3), thing(1)])


def tensors_inside(rank: int, world: int) -> None:
    got: list[Any] = [None] * world
    dist.all_gather_object(got, torch.arange(rank))
    for r in range(world):
        assert torch.equal(got[r], torch.arange(r))


def in_a_subgroup(rank: int, world: int) -> None:
    """Roots as global and as group ranks agree."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return
    for root in ({"src": 2}, {"group_src": 1}):
        objects = [thing(rank)]
        dist.broadcast_object_list(objects, group=group, **root)
        assert objects == [thing(2)], root
        got: list[Any] = [None]
        dist.scatter_object_list(
            got, [thing(5), thing(6)] if rank == 2 else None, group=group, **root
        )
        assert got == [thing(4 + rank)], root
    for root in ({"dst": 2}, {"group_dst": 1}):
        gathered = [None, None] if rank == 2 else None
        dist.gather_object(thing(rank), gathered, group=group, **root)
        assert gathered == ([thing(1), thing(2)] if rank == 2 else None), root


CASES = [
    all_gather_object,
    broadcast_object_list,
    gather_object,
    scatter_object_list,
    send_object_list,
    tensors_inside,
    in_a_subgroup,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_objects(case: Any) -> None:
    run_ranks(case, 3)
