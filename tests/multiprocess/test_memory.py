"""Memory that is short, overrun, or written by somebody hostile."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import resource
import socket
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.cases import SLOT_BYTES, SMALL_SLOTS, message_of
from tests.multiprocess.harness import Ranks, run_ranks

PLENTY = resource.RLIM_INFINITY


def limit_files(nbytes: int) -> None:
    """Shared memory is files without names: this is how little of it a process may make."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, PLENTY))


def short_of_memory(rank: int, world: int, nbytes: int) -> str:
    dda = importlib.import_module("dda")
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(backend="gloo")
    if rank == 1:
        limit_files(nbytes)
    message = message_of(lambda: dist.new_group(backend="dda"))
    dist.barrier(group)
    if rank == 1:
        limit_files(PLENTY)
    # The same process makes a group once there is room.
    again = dda._C.create_backend(
        dist.PrefixStore("again", store), rank, world, dda.Options(timedelta(seconds=20))
    )
    x = torch.ones(5)
    again.allreduce([x]).wait()
    assert x[0] == world
    return message


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
def test_F41_no_room_for_an_arena_is_an_error_on_every_rank(nbytes: int) -> None:
    for message in run_ranks(short_of_memory, 3, nbytes, backend="gloo", timeout=40):
        assert "rank 1" in message and "no room for" in message, message
        assert "DDA_SLOT_BYTES" in message  # the remedy


def short_of_symmetric_memory(rank: int, world: int) -> str:
    dda = importlib.import_module("dda")
    if rank == 1:
        limit_files(1 << 20)
    message = message_of(lambda: dda.empty(1 << 20))
    x = torch.ones(5)
    dist.all_reduce(x)
    assert x[0] == world, "the group goes on"
    y = dda.empty(1000)
    dda.all_reduce(y, out=y)
    return message


def test_F41_no_room_for_a_symmetric_tensor_is_an_error_on_every_rank() -> None:
    for message in run_ranks(short_of_symmetric_memory, 3, timeout=40):
        assert "rank 1" in message and "no room for" in message, message


def around_the_room(rank: int, world: int, algorithm: str) -> None:
    """Messages around what a slot, all slots and the whole staging area hold, with guards."""
    dda = importlib.import_module("dda")
    for room in (208, SLOT_BYTES, 2 * SLOT_BYTES, 4 * SLOT_BYTES, 64 * SLOT_BYTES):
        for nbytes in (room - 1, room, room + 1):
            block = torch.full((nbytes + 128,), 0xA5, dtype=torch.uint8)
            x = block[64:-64]
            for call in range(3):
                x.fill_(rank + call)
                dda.all_reduce(x, out=x, algorithm=algorithm)
                assert (x == sum(r + call for r in range(world))).all(), (nbytes, call)
                assert (block[:64] == 0xA5).all() and (block[-64:] == 0xA5).all()
            parts = torch.empty(world * nbytes, dtype=torch.uint8)
            dist.all_gather_into_tensor(parts, torch.full_like(x, rank))
            want = torch.arange(world, dtype=torch.uint8).repeat_interleave(nbytes)
            assert torch.equal(parts, want), nbytes
    dist.barrier()


@pytest.mark.parametrize("algorithm", ["flat", "tree"])
@pytest.mark.parametrize("world", [2, 3])
def test_F45_a_message_as_large_as_the_room_and_a_byte_more(world: int, algorithm: str) -> None:
    run_ranks(around_the_room, world, algorithm, env=SMALL_SLOTS)


class Exploit:
    """Its pickle runs code where it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (os.environ["EXPLOIT"],)


HOSTILE = {
    "pickle": lambda: pickle.dumps(Exploit()),
    "nothing": lambda: b"",
    "short": lambda: b"\x01\x00\x00",
    "long": lambda: b"\x01" * 100_000,
    "random": lambda: torch.randint(0, 256, (500,), dtype=torch.uint8).numpy().tobytes(),
}


def meet_the_hostile(rank: int, world: int, kind: str) -> str:
    """Rank 1 is somebody else, who has written our keys first."""
    store = dist.distributed_c10d._get_default_store()
    value = HOSTILE[kind]()
    if rank == 1:
        for key in ("dda/1/address/1", "dda/1/verdict0/1", "dda/2/address/1"):
            dist.PrefixStore("hostile", store).set(key, value)
        dist.barrier()
        return ""
    dist.barrier()
    dda = importlib.import_module("dda")
    mine = dist.PrefixStore("hostile", store)
    options = dda.Options(timedelta(seconds=3))
    return message_of(lambda: dda._C.create_backend(mine, 0, 2, options))


@pytest.mark.parametrize("kind", HOSTILE)
def test_F46_what_others_write_into_the_store_is_never_executed(kind: str, tmp_path) -> None:
    planted = tmp_path / "executed"
    env = {"EXPLOIT": str(planted)}
    message = run_ranks(meet_the_hostile, 2, kind, backend="gloo", env=env, timeout=30)[0]
    assert "rank 1" in message and "did not come" not in message, message
    assert not planted.exists()


def knock(name: str, seconds: float) -> None:
    """Connects to a listener again and again, as another user in a process of its own."""
    if os.fork() != 0:
        return
    os.setuid(65534)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with stranger, contextlib.suppress(OSError):
            stranger.connect("\0" + name)
    os._exit(0)


def wait_among_strangers(rank: int, world: int) -> tuple[str, float]:
    """Rank 1 says that it is there and never connects; strangers do so in its stead."""
    store = dist.PrefixStore("knock", dist.distributed_c10d._get_default_store())
    # On one core, where strangers go before rank 0: it always finds one at its door.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if rank == 0:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        dda = importlib.import_module("dda")
        options = dda.Options(timedelta(seconds=2))
        begin = time.monotonic()
        message = message_of(lambda: dda._C.create_backend(store, 0, 2, options))
        return message, time.monotonic() - begin
    address = store.get("dda/1/address/0")
    name = re.search(rb"dda-[0-9a-f]{32}", address)
    assert name is not None
    for _ in range(4):
        knock(name[0].decode(), seconds=12)
    store.set("dda/1/address/1", address)
    for verdict in ("verdict0", "verdict1"):
        store.set(f"dda/1/{verdict}/1", store.get(f"dda/1/{verdict}/0"))
    return "", 0.0


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root's rights")
def test_F46_strangers_do_not_keep_a_rank_past_its_time() -> None:
    # Its limit is 2 s, on a core where all others go before it; the strangers come for 12.
    message, took = run_ranks(wait_among_strangers, 2, backend="gloo", timeout=40)[0]
    assert "timed out" in message and took < 8, (message, took)


def scribble(rank: int, world: int) -> str:
    """Rank 1 writes noise over its whole arena, as a broken or hostile process would."""
    dda = importlib.import_module("dda")
    dda.set_timeout(2)
    dist.barrier()
    if rank == 1:
        with open("/proc/self/maps") as maps:
            line = next(line for line in maps if "dda-arena" in line)
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        noise = torch.randint(0, 256, (end - begin,), dtype=torch.uint8)
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(noise.numpy().tobytes())
    x = torch.ones(100_000)
    return message_of(lambda: [dist.all_reduce(x) for _ in range(100)])


def test_F46_noise_in_an_arena_crashes_nobody() -> None:
    with Ranks(scribble, 3) as ranks:
        for outcome in ranks.join(30, [0, 2]):
            # An error or a wrong result (then no error was raised), but no crash and no hang.
            assert outcome.exitcode in (0, 1), outcome.describe()
            assert outcome.error is None or "no error was raised" in outcome.error
