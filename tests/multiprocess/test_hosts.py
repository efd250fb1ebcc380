"""Ranks that cannot share memory: gloo serves the groups that they are in, and only those.

Two hosts are two network namespaces that a cable joins: the sockets over which ranks hand memory to
each other do not reach from one into the other. That takes root's rights and iproute2.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.multiprocess.cases import message_of
from tests.multiprocess.harness import BACKEND, Ranks, listen, run_ranks, tell

CLONE_NEWNET = 0x40000000
APART = {"DDA_DISABLE_SHARED_MEMORY": "1"}


def every_collective(group: dist.ProcessGroup | None = None) -> None:
    """All collectives over `group`, through torch and dda's functions, with exact results."""
    dda = importlib.import_module("dda")
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    total = float(sum(range(world)))
    x = torch.full((3,), float(rank))
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full((3,), total))
    x = torch.full((3,), float(rank))
    assert torch.equal(dda.all_reduce(x, group=group), torch.full((3,), total))
    ordered = torch.arange(float(world)).repeat_interleave(3)
    assert torch.equal(dda.all_gather(x, group=group), ordered)
    assert torch.equal(dda.all_to_all_single(torch.full((world,), x[0]), group=group), ordered[::3])
    part = dda.reduce_scatter(torch.arange(float(world)), group=group)
    assert part.tolist() == [float(rank * world)]
    dda.broadcast(x, root=1, group=group)
    assert torch.equal(x, torch.ones(3))
    x = torch.full((2,), float(rank))
    dda.reduce(x, root=0, group=group)
    assert x[0] == (total if rank == 0 else rank)
    assert dda.gather(torch.full((1,), float(rank)), 1, group).tolist() == (
        list(map(float, range(world))) if rank == 1 else []
    )
    out = torch.empty(1)
    dda.scatter(out, torch.arange(float(world)) if rank == 0 else None, group=group)
    assert out[0] == rank
    peer = rank ^ 1
    got = torch.empty(1)
    work = dist.isend(torch.full((1,), float(rank)), group=group, group_dst=peer)
    dist.recv(got, group=group, group_src=peer)
    work.wait()
    assert got[0] == peer
    coalesced(group)
    box: list[object] = [None] * world
    dist.all_gather_object(box, {"rank": rank}, group=group)
    assert box == [{"rank": r} for r in range(world)]
    dist.barrier(group)


def coalesced(group: dist.ProcessGroup | None = None) -> None:
    """Several calls as one, of several dtypes and lengths, in every form of the manager."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    dtypes = (torch.float32, torch.int64, torch.float64)
    for device in (None, torch.device("cpu")):
        for is_async in (False, True):
            sums = [torch.full((i + 1,), rank + i, dtype=d) for i, d in enumerate(dtypes)]
            gathered = [torch.empty(world * (i + 1), dtype=d) for i, d in enumerate(dtypes)]
            parts = [torch.empty(i + 1, dtype=d) for i, d in enumerate(dtypes)]
            for out, inputs, call in (
                (sums, sums, lambda o, i: dist.all_reduce(o, group=group)),
                (gathered, sums, lambda o, i: dist.all_gather_into_tensor(o, i, group=group)),
                (parts, gathered, lambda o, i: dist.reduce_scatter_tensor(o, i, group=group)),
            ):
                with _coalescing_manager(group, device, is_async) as block:
                    for o, i in zip(out, inputs, strict=True):
                        call(o, i)
                if is_async:
                    block.wait()
            for i in range(len(dtypes)):
                total = sum(range(world)) + world * i
                assert torch.equal(sums[i], torch.full_like(sums[i], total)), (device, is_async)
                assert torch.equal(gathered[i], torch.full_like(gathered[i], total))
                assert torch.equal(parts[i], torch.full_like(parts[i], total * world))
    after, before = (rank + 1) % world, (rank - 1) % world
    got = [torch.empty(3), torch.empty(2)]
    calls = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), group=group, group_peer=after, tag=1),
        dist.P2POp(dist.isend, torch.full((2,), -1.0), group=group, group_peer=before, tag=2),
        dist.P2POp(dist.irecv, got[0], group=group, group_peer=before, tag=1),
        dist.P2POp(dist.irecv, got[1], group=group, group_peer=after, tag=2),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    assert torch.equal(got[0], torch.full((3,), float(before)))
    assert torch.equal(got[1], torch.full((2,), -1.0))


def average(rank: int, world: int) -> None:
    """Gloo averages floats only; for others it would fail after it has written the sum."""
    dda = importlib.import_module("dda")
    mean = (world - 1) / 2
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        whole = torch.full((world,), rank, dtype=dtype)
        want = torch.full((world,), mean, dtype=dtype)
        x, part, listed = whole.clone(), whole.new_empty(1), whole.new_empty(1)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.equal(x, want)
        assert torch.equal(dda.all_reduce(whole, "avg"), want)
        dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.AVG)
        dist.reduce_scatter(listed, list(whole.chunk(world)), dist.ReduceOp.AVG)
        assert torch.equal(part, want[:1]) and torch.equal(listed, want[:1])
        assert torch.equal(dda.reduce_scatter(whole, "avg"), want[:1])
        with _coalescing_manager():
            dist.reduce_scatter_tensor(part.zero_(), whole, dist.ReduceOp.AVG)
        assert torch.equal(part, want[:1])
        x = whole.clone()
        dist.reduce(x, 1, dist.ReduceOp.AVG)
        assert rank != 1 or torch.equal(x, want)
        x = whole.clone()
        dda.reduce(x, 1, "avg")
        assert torch.equal(x, want if rank == 1 else whole)
    x = torch.arange(3)
    for call in (
        lambda: dist.all_reduce(x, dist.ReduceOp.AVG),
        lambda: dist.reduce(x, 0, dist.ReduceOp.AVG),
        lambda: dda.all_reduce(x, "avg", out=x),
    ):
        assert "no average of Long" in message_of(call)
    assert torch.equal(x, torch.arange(3)), "a refused call wrote"
    dist.barrier()


@pytest.mark.parametrize("world", [2, 3])
def test_averages_where_gloo_serves(world: int) -> None:
    run_ranks(average, world, env=APART)


def kind_of(group: dist.ProcessGroup | None = None) -> str:
    backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    return type(backend).__name__


def apart(rank: int, world: int) -> tuple[str, str]:
    dda = importlib.import_module("dda")
    assert kind_of() == "FallbackBackend" and dist.get_backend() == BACKEND
    every_collective()
    empty = message_of(lambda: dda.empty(3))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return backend.reason, empty


@pytest.mark.parametrize("world", [2, 4])
def test_gloo_serves_ranks_that_share_no_memory(world: int) -> None:
    reasons = run_ranks(apart, world, env=APART)
    for reason, empty in reasons:
        assert reason == reasons[0][0] and "DDA_DISABLE_SHARED_MEMORY" in reason
        assert reason in empty


@cache
def why_no_hosts() -> str:
    """Why this machine cannot show two hosts, or ""."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "two hosts take root's rights, iproute2 and nsenter"
    done = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "type", "veth"], capture_output=True, text=True
    )
    return f"no network namespaces: {done.stderr.strip()}" if done.returncode else ""


def enter_host(rank: int) -> None:
    """Ranks 0 and 1 go to one host, 2 and 3 to another; the test lays the cable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if rank % 2 == 0:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        tell(os.getpid())
    else:
        with open(f"/proc/{listen()}/ns/net") as host:
            assert libc.setns(host.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        tell("there")
    listen()
    os.environ["GLOO_SOCKET_IFNAME"] = "dda0"


def on_two_hosts(rank: int, world: int, path: str) -> tuple[str, list[str]]:
    enter_host(rank)
    importlib.import_module("dda")
    store = dist.FileStore(path, world)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dist.init_process_group(
            BACKEND, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=20)
        )
    assert kind_of() == "FallbackBackend"
    every_collective()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    assert kind_of(mine) == "DdaBackend", "the ranks of one host share memory"
    every_collective(mine)
    across = dist.new_group([1, 2])
    if rank in (1, 2):
        assert kind_of(across) == "FallbackBackend"
        every_collective(across)
    dist.barrier()
    reason = dist.group.WORLD._get_backend(torch.device("cpu")).reason
    return reason, [str(w.message) for w in told if "gloo" in str(w.message)]


@pytest.mark.skipif(why_no_hosts() != "", reason=why_no_hosts())
def test_F34_ranks_on_two_hosts(tmp_path: Path) -> None:
    with Ranks(on_two_hosts, 4, str(tmp_path / "store"), backend=None) as ranks:
        hosts = [ranks.hear(0), ranks.hear(2)]
        for i, pid in enumerate(hosts):
            ranks.say(2 * i + 1, pid)
            ranks.hear(2 * i + 1)
        cable = f"ip link add dda0 netns {hosts[0]} type veth peer name dda0 netns {hosts[1]}"
        subprocess.run(cable.split(), check=True)
        for i, pid in enumerate(hosts):
            for command in (
                f"addr add 10.77.0.{i + 1}/24 dev dda0",
                "link set dda0 up",
                "link set lo up",
            ):
                subprocess.run(
                    ["nsenter", "-t", str(pid), "-n", "ip", *command.split()], check=True
                )
        for rank in range(4):
            ranks.say(rank)
        for outcome in ranks.join(50):
            assert outcome.ok, outcome.describe()
            reason, told = outcome.value
            assert "cannot share memory" in reason and "another host" in reason, reason
            assert len(told) == 1 and reason in told[0], told
