"""Symmetric tensors: peers read and write them where they lie, and nobody sees a difference."""

from __future__ import annotations

import gc
import importlib
import os
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess import cases as c
from tests.multiprocess.harness import Ranks, run_ranks
from tests.multiprocess.reference import assert_same_bits, reduced, values

COLLECTIVES = ("all_reduce", "in_place", "reduce", "broadcast", "all_gather", "gather")
EVEN = ("reduce_scatter",)
# Which of a rank's tensors are symmetric. A call may mix them, and so may ranks.
KINDS = ("both", "input", "output", "one rank", "neither")


@dataclass(frozen=True)
class Case:
    """One call of `count` elements a part; `algorithm` is for all_reduce."""

    name: str
    count: int
    kind: str = "both"
    dtype: torch.dtype = torch.float32
    algorithm: str = "auto"


def check(rank: int, world: int, case: Case) -> None:
    dda = importlib.import_module("dda")
    scattered = case.name == "reduce_scatter"
    n_in = case.count * (world if scattered else 1)
    n_out = case.count * (world if case.name in ("all_gather", "gather") else 1)
    inputs = [values((n_in,), case.dtype, case.count, r) for r in range(world)]

    def make(n: int, which: str) -> torch.Tensor:
        # Collective, so every rank makes one, and not every rank takes it.
        symmetric = dda.empty(n, dtype=case.dtype)
        mine = case.kind in ("both", which) or (case.kind == "one rank" and rank == world - 1)
        return symmetric if mine else torch.empty(n, dtype=case.dtype)

    x, out = make(n_in, "input"), make(n_out, "output")
    x.copy_(inputs[rank])
    root = world - 1
    total = reduced(inputs, "sum") if case.name != "broadcast" else inputs[root]
    untouched = True
    if case.name == "all_reduce":
        dda.all_reduce(x, out=out, algorithm=case.algorithm)
        assert_same_bits(out, total)
    elif case.name == "in_place":
        dda.all_reduce(x, out=x, algorithm=case.algorithm)
        assert_same_bits(x, total)
        untouched = False
    elif case.name == "reduce":
        dda.reduce(x, root)
        untouched = rank != root
        assert_same_bits(x, total if rank == root else inputs[rank])
    elif case.name == "broadcast":
        dda.broadcast(x, root)
        assert_same_bits(x, total)
        untouched = rank == root
    elif case.name == "all_gather":
        dda.all_gather(x, out=out)
        assert_same_bits(out, torch.cat(inputs))
    elif case.name == "gather":
        parts = list(out.chunk(world)) if rank == root else None
        dist.gather(x, parts, root)
        assert rank != root or torch.equal(
            out.view(torch.uint8), torch.cat(inputs).view(torch.uint8)
        )
    else:
        dda.reduce_scatter(x, out=out)
        assert_same_bits(out, total[rank * case.count : (rank + 1) * case.count])
    if untouched:
        assert_same_bits(x, inputs[rank], "the input")


SIZES = (0, 1, 3, 1000, 5000, 100_003)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_mix_of_symmetric_and_other_tensors(world: int) -> None:
    names = (*COLLECTIVES, *EVEN)
    c.run_cases(
        check,
        world,
        [Case(name, n, kind) for name in names for n in SIZES for kind in KINDS],
        timeout=120,
    )


@pytest.mark.parametrize("world", [2, 4])
def test_both_algorithms_of_all_reduce(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(name, n, kind, dtype, algorithm)
            for name in ("all_reduce", "in_place")
            for n in SIZES
            for kind in KINDS
            for dtype in (torch.bfloat16, torch.int64)
            for algorithm in ("flat", "tree")
        ],
        timeout=120,
    )


def views(rank: int, world: int) -> None:
    """Any part of a symmetric tensor is symmetric; one that sticks out of it is not made."""
    dda = importlib.import_module("dda")
    block = dda.empty(10, 5000)
    assert block.sum() == 0, "new symmetric memory is zeroed"
    for step in range(4):
        block.fill_(rank + step)
        dda.all_reduce(block[step], out=block[step])
        want = float(sum(r + step for r in range(world)))
        assert torch.equal(block[step], torch.full((5000,), want))
        assert torch.equal(block[step + 1], torch.full((5000,), float(rank + step)))
        column = block[:, step]
        dist.all_reduce(column)  # strided: it is staged
        assert column[step + 1] == want
    half = block.view(torch.int32)
    half.fill_(rank)
    dist.all_reduce(half[1:3])
    assert torch.equal(half[1:3], torch.full((2, 5000), 1 if world == 2 else 3, dtype=torch.int32))


@pytest.mark.parametrize("world", [2, 3])
def test_views(world: int) -> None:
    run_ranks(views, world)


def freed_at_different_times(rank: int, world: int) -> tuple[int, int]:
    """One rank frees its tensors early, another late; each goes when all have freed it."""
    dda = importlib.import_module("dda")
    kept: list[torch.Tensor] = []

    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("dda-symmetric" in line for line in maps)

    for i in range(60):
        x = dda.empty(20_000)
        x.fill_(rank + i)
        dda.all_reduce(x, out=x)
        assert x[7] == sum(r + i for r in range(world))
        if rank == 1:
            kept.append(x)
        del x
        if i % 20 == 19:
            kept.clear()
            gc.collect()
            dist.barrier()
    first = mapped()
    del kept
    dist.barrier()
    y = dda.empty(1)  # collects
    last = mapped()
    del y
    return first, last


def test_memory_is_freed_when_the_last_rank_is_done() -> None:
    for first, last in run_ranks(freed_at_different_times, 3):
        # 20 tensors of 3 ranks, of 60 that were made; then the last one.
        assert first <= 60 and last <= 3, (first, last)


def different_sizes(rank: int, world: int) -> str:
    dda = importlib.import_module("dda")
    message = c.message_of(lambda: dda.empty(100 + rank))
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == world
    return message


def test_different_sizes_are_an_error_on_every_rank() -> None:
    for message in run_ranks(different_sizes, 2, timeout=30):
        assert "400" in message and "404" in message, message


def outlive(rank: int, world: int) -> None:
    """A symmetric tensor outlives its group, and is then a tensor like any other."""
    dda = importlib.import_module("dda")
    x = dda.empty(1000)
    x.fill_(rank)
    dda.all_reduce(x, out=x)
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    assert x.sum() == 1000 * sum(range(world))
    dist.init_process_group("dda", store=store, rank=rank, world_size=world)
    dist.all_reduce(x)  # of a group that knows nothing of it
    assert x[0] == world * sum(range(world))


def test_a_symmetric_tensor_outlives_its_group() -> None:
    run_ranks(outlive, 2)


def die_with_symmetric(rank: int, world: int) -> str:
    dda = importlib.import_module("dda")
    x = dda.empty(1 << 20)
    dist.barrier()
    if rank == 1:
        os._exit(0)
    message = c.message_of(lambda: [dda.all_reduce(x, out=x) for _ in range(1000)])
    assert x.sum() is not None  # the memory is still there: no SIGBUS
    return message


def test_the_memory_of_a_dead_rank_stays() -> None:
    with Ranks(die_with_symmetric, 3) as ranks:
        for outcome in ranks.join(30, [0, 2]):
            assert outcome.ok, outcome.describe()
            assert "rank 1 died" in outcome.value


def explained(rank: int, world: int) -> list[str]:
    dda = importlib.import_module("dda")
    return [dda.explain("all_reduce", 1 << 20, symmetric=s).reason for s in (False, True)]


def test_explain_says_that_they_are_read_in_place() -> None:
    staged, read = run_ranks(explained, 3)[0]
    assert "read where they are" in read and "read where they are" not in staged


def list_beside_tensor(rank: int, world: int, n: int) -> None:
    """One rank passes a list of parts where another passes a symmetric tensor."""
    dda = importlib.import_module("dda")
    x = dda.empty(world * n)
    x.fill_(rank + 1)
    out = torch.empty(n)
    total = float(sum(range(world + 1)))
    for _ in range(3):
        if rank == 1:
            dist.reduce_scatter(out, [torch.full((n,), rank + 1.0) for _ in range(world)])
        else:
            dist.reduce_scatter_tensor(out, x)
        assert torch.equal(out, torch.full((n,), total))


@pytest.mark.parametrize("n", [3, 5000, 100_003])
def test_a_list_of_parts_meets_a_symmetric_tensor(n: int) -> None:
    run_ranks(list_beside_tensor, 3, n, env=c.SMALL_SLOTS)


def drop_in_a_child(rank: int, world: int) -> None:
    """A forked child drops its copy of a tensor; the parent's stays symmetric."""
    dda = importlib.import_module("dda")
    kept = [dda.empty(20_000)]
    if rank == 0:
        pid = os.fork()
        if pid == 0:
            kept.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        x = kept[0]
    else:
        kept.clear()  # these ranks do free theirs
        gc.collect()
        x = torch.empty(20_000)
    dist.barrier()
    other = dda.empty(1)  # collects
    out = torch.empty(20_000)
    x.fill_(rank)
    dda.all_reduce(x, out=out)
    assert torch.equal(out, torch.full((20_000,), float(sum(range(world)))))
    del other


def test_a_forked_child_frees_nothing() -> None:
    run_ranks(drop_in_a_child, 3, timeout=30, env=c.SMALL_SLOTS)


def die_while_others_allocate(rank: int, world: int) -> str:
    dda = importlib.import_module("dda")
    dist.barrier()
    if rank == 1:
        os._exit(0)
    return c.message_of(lambda: dda.empty(1000))


def test_a_death_ends_an_allocation() -> None:
    with Ranks(die_while_others_allocate, 3) as ranks:
        for outcome in ranks.join(15, [0, 2]):
            assert outcome.ok, outcome.describe()
            assert "rank 1" in outcome.value


def freed_without_another(rank: int, world: int) -> int:
    dda = importlib.import_module("dda")
    x = dda.empty(1 << 20)
    del x
    y = torch.ones(1)
    for _ in range(600):
        dist.all_reduce(y)
    with open("/proc/self/maps") as maps:
        return sum("dda-symmetric" in line for line in maps)


def test_freed_memory_goes_without_another_allocation() -> None:
    assert run_ranks(freed_without_another, 2) == [0, 0]
