"""Parts that ranks read in each other's processes: right, allowed, given up where they cannot."""

from __future__ import annotations

import ctypes
import importlib
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess import test_all_gather, test_all_to_all
from tests.multiprocess.harness import run_ranks, store_of
from tests.multiprocess.reference import LAYOUTS

# So that small parts are read too, in several blocks of a few KiB.
ALWAYS = {"DDA_SINGLE_COPY_BYTES": "1", "DDA_SLOT_BYTES": "4096"}
PR_SET_DUMPABLE = 4


def reason(collective: str, size: int = 1 << 20) -> str:
    return importlib.import_module("dda").explain(collective, size).reason


def all_gathers(rank: int, world: int) -> None:
    assert "process_vm_readv" in reason("all_gather"), reason("all_gather")
    for how in test_all_gather.HOWS:
        for n in (1, 5, 1021, 30_000):
            for layout in LAYOUTS:
                case = test_all_gather.Case(torch.float32, (n,), how, (layout,), seed=n)
                test_all_gather.check(rank, world, case)


@pytest.mark.parametrize("world", [2, 3])
def test_all_gather_of_what_is_read_in_place(world: int) -> None:
    run_ranks(all_gathers, world, env=ALWAYS)


def all_to_alls(rank: int, world: int) -> None:
    assert "process_vm_readv" in reason("all_to_all"), reason("all_to_all")
    uneven = tuple(tuple((r * 7 + p * 3) % 5 * 911 for p in range(world)) for r in range(world))
    for how in test_all_to_all.HOWS:
        for rows in (1, 5, 1021, 9_000, uneven):
            for layout in LAYOUTS:
                case = test_all_to_all.Case(torch.float32, rows, (3,), how, (layout,))
                test_all_to_all.check(rank, world, case)
    # In place a rank overwrites what its peers have still to read.
    x = torch.arange(world).repeat_interleave(50_000) + 10 * rank
    dist.all_to_all_single(x, x)
    assert torch.equal(x, (10 * torch.arange(world) + rank).repeat_interleave(50_000))


@pytest.mark.parametrize("world", [2, 3])
def test_all_to_all_of_what_is_read_in_place(world: int) -> None:
    run_ranks(all_to_alls, world, env=ALWAYS)


def overwritten(rank: int, world: int) -> None:
    """An input may be overwritten as soon as the call has returned."""
    out = torch.empty(world, 150_000)
    for step in range(60):
        mine = torch.full((150_000,), float(step * world + rank))
        dist.all_gather_into_tensor(out, mine)
        mine.fill_(-1)
        want = torch.arange(float(world)).unsqueeze(1) + step * world
        assert torch.equal(out, want.expand_as(out)), step


def test_a_call_returns_when_its_input_has_been_read() -> None:
    run_ranks(overwritten, 3, env=ALWAYS)


def switched_off(rank: int, world: int) -> None:
    assert "process_vm_readv" not in reason("all_gather")
    case = test_all_gather.Case(torch.float32, (100_000,))
    test_all_gather.check(rank, world, case)


def test_it_can_be_switched_off() -> None:
    run_ranks(switched_off, 2, env={"DDA_SINGLE_COPY_BYTES": "0"})


def forbidden(rank: int, world: int, name: str, port: int) -> None:
    importlib.import_module("dda")
    if os.getuid() == 0:
        os.setuid(65534)
    # One that cannot be read is enough: the ranks must agree.
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(rank != 1)) == 0
    store = store_of(port, name, 60)
    dist.init_process_group(
        "dda", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    switched_off(rank, world)


def test_where_the_host_forbids_it_parts_are_staged(listening: tuple[int, str]) -> None:
    port, name = listening
    run_ranks(forbidden, 3, name, port, backend=None)


@pytest.fixture
def listening() -> tuple[int, str]:
    """A place to meet, for ranks that make their group themselves."""
    from tests.multiprocess import harness

    return harness._store().port, "forbidden"


def whole_range(rank: int, world: int) -> list[bool]:
    return ["process_vm_readv" in reason("all_gather", n << 10) for n in (64, 256, 1024, 4096)]


def test_sizes_at_which_it_is_taken() -> None:
    assert run_ranks(whole_range, 2) == [[False, True, True, False]] * 2
