"""Ranks that die, hang, leave or come late: every other rank raises in time and says who."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.cases import message_of
from tests.multiprocess.harness import BACKEND, Ranks, listen, run_ranks, tell

N = 3000  # elements of a call
DETECT = 0.1  # seconds in which a death is promised to be seen
SLACK = 1.0  # seconds that a busy machine gets


def calls(rank: int, world: int, victim: int) -> dict[str, Callable[[], object]]:
    """Calls in which every rank but `victim` comes to wait for it, at once or at the barrier."""
    x = torch.ones(N)
    parts = [torch.ones(N) for _ in range(world)]
    at_root = parts if rank == victim else None
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "big all_reduce": lambda: dist.all_reduce(torch.ones(1_000_000)),
        "reduce": lambda: dist.reduce(x, victim),
        "broadcast": lambda: dist.broadcast(x, victim),
        "all_gather": lambda: dist.all_gather(parts, x),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts),
        "gather": lambda: dist.gather(x, at_root, victim),
        "scatter": lambda: dist.scatter(x, at_root, victim),
        "all_to_all": lambda: dist.all_to_all(list(parts), [torch.ones(N) for _ in parts]),
        "recv": lambda: dist.recv(x, victim),
        "recv from any": lambda: dist.recv(x),
        "big send": lambda: dist.send(torch.ones(3_000_000), victim),
        "barrier": lambda: dist.barrier(),
    }


CALLS = list(calls(0, 2, 1))


def survive(rank: int, world: int, victim: int, name: str, how: str) -> tuple[str, float]:
    """Calls once together, then without the victim; returns the error and when it came."""
    call = calls(rank, world, victim)[name]
    dist.barrier()
    if rank == victim:
        tell("ready")
        if listen() == "exit":
            os._exit(0)  # without a word to the group
        return "", 0.0
    tell("ready")

    def wait() -> None:
        call()
        dist.barrier()

    message = message_of(wait)
    return message, time.monotonic()


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("name", CALLS)
def test_F24_every_waiter_raises_soon_after_a_rank_dies(name: str, how: str) -> None:
    world, victim = 3, 1
    with Ranks(survive, world, victim, name, how, group_timeout=60) as ranks:
        for rank in range(world):
            ranks.hear(rank)
        time.sleep(0.05)  # so that the others wait
        if how == "kill":
            died = ranks.signal(victim, signal.SIGKILL)
        else:
            ranks.say(victim, "exit")
            ranks.outcome(victim)
            died = time.monotonic()
        for outcome in ranks.join(20, [0, 2]):
            assert outcome.ok, outcome.describe()
            message, when = outcome.value
            delay = when - died
            print(f"{name}: rank {outcome.rank} saw the death after {delay * 1e3:.1f} ms")
            assert f"rank {victim}" in message and "died" in message, message
            assert delay < DETECT + SLACK, f"{delay} s"


def die_in_a_loop(rank: int, world: int, size: int) -> tuple[str, float]:
    dist.barrier()
    tell("ready")
    x = torch.ones(size)

    def forever() -> None:
        while True:
            dist.all_reduce(x)

    return message_of(forever), time.monotonic()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("size", [4, 100_000])
def test_F24_a_rank_killed_within_a_call(world: int, size: int) -> None:
    for victim in range(world):
        with Ranks(die_in_a_loop, world, size) as ranks:
            for rank in range(world):
                ranks.hear(rank)
            time.sleep(0.03 + 0.007 * victim)
            died = ranks.signal(victim, signal.SIGKILL)
            for outcome in ranks.join(20, [r for r in range(world) if r != victim]):
                assert outcome.ok, outcome.describe()
                message, when = outcome.value
                assert f"rank {victim}" in message, message
                assert when - died < DETECT + SLACK, f"{when - died} s"


def queue_three(rank: int, world: int) -> tuple[list[str], float, float, list[str]]:
    dist.barrier()
    tell("ready")
    if rank == 1:
        time.sleep(60)
    works = [dist.all_reduce(torch.ones(N), async_op=True) for _ in range(3)]
    messages = [message_of(work.wait) for work in works]
    when = time.monotonic()
    again = [message_of(lambda: dist.all_reduce(torch.ones(N))), message_of(dist.barrier)]
    at_once = time.monotonic() - when
    busy = time.process_time()
    time.sleep(0.3)
    busy = time.process_time() - busy
    assert busy < 0.1, f"a thread still spins: {busy} s of CPU in 0.3 s"
    return messages, when, at_once, again


def test_F24_queued_calls_fail_too_and_nothing_spins_on() -> None:
    with Ranks(queue_three, 4) as ranks:
        for rank in range(4):
            ranks.hear(rank)
        time.sleep(0.05)
        died = ranks.signal(1, signal.SIGKILL)
        for outcome in ranks.join(20, [0, 2, 3]):
            assert outcome.ok, outcome.describe()
            messages, when, at_once, again = outcome.value
            assert when - died < DETECT + SLACK
            assert at_once < 0.1, "calls on a broken group raise at once"
            for message in messages + again:
                assert "rank 1" in message, message


def leave_early(rank: int, world: int) -> str:
    dist.barrier()
    if rank == 2:
        return ""  # the harness destroys the group
    return message_of(lambda: dist.all_reduce(torch.ones(N)))


def test_F24_a_rank_that_destroys_its_group_is_named() -> None:
    for message in run_ranks(leave_early, 3, timeout=20)[:2]:
        assert "rank 2" in message and "left" in message, message


def exit_before_the_first_call(rank: int, world: int) -> tuple[str, float]:
    if rank == 0:
        os._exit(0)
    begin = time.monotonic()
    return message_of(lambda: dist.all_reduce(torch.ones(N))), time.monotonic() - begin


def test_F23_a_rank_exits_before_the_first_call() -> None:
    with Ranks(exit_before_the_first_call, 2, group_timeout=2) as ranks:
        outcome = ranks.outcome(1, 20)
        assert outcome.ok, outcome.describe()
        message, took = outcome.value
        assert "rank 0" in message and took < 2 + SLACK, (message, took)


def go_on_without(rank: int, world: int) -> float:
    """After a death the survivors can form another group, with the ranks that are left."""
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    message_of(lambda: dist.all_reduce(torch.ones(N)))
    store = dist.PrefixStore("second", dist.distributed_c10d._get_default_store())
    begin = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - begin < 1, "destroying a broken group takes no time"
    dist.init_process_group(BACKEND, store=store, rank=rank // 2, world_size=2)
    x = torch.full((N,), float(rank))
    dist.all_reduce(x)
    return float(x[0])


def test_F24_survivors_form_a_new_group() -> None:
    with Ranks(go_on_without, 3) as ranks:
        for outcome in ranks.join(30, [0, 2]):
            assert outcome.ok, outcome.describe()
            assert outcome.value == 2.0


def wait_for_the_stopped(rank: int, world: int, victim: int) -> tuple[str, float, str]:
    dist.barrier()
    tell("ready")
    listen()
    begin = time.monotonic()
    message = message_of(lambda: dist.all_reduce(torch.ones(N)))
    took = time.monotonic() - begin
    return message, took, message_of(dist.barrier)


def test_F25_a_rank_that_hangs_is_named_within_the_timeout() -> None:
    world, victim, limit = 4, 2, 1.0
    with Ranks(wait_for_the_stopped, world, victim, group_timeout=limit) as ranks:
        for rank in range(world):
            ranks.hear(rank)
        ranks.signal(victim, signal.SIGSTOP)
        for rank in range(world):
            ranks.say(rank)
        for outcome in ranks.join(20, [r for r in range(world) if r != victim]):
            assert outcome.ok, outcome.describe()
            message, took, again = outcome.value
            assert "Timed out" in message and f"not arrived: rank {victim}" in message, message
            assert limit * 0.9 < took < limit + SLACK, f"{took} s"
            assert "Timed out" in again
        ranks.signal(victim, signal.SIGCONT)
        late = ranks.outcome(victim, 20)
        assert late.ok, late.describe()
        assert "Timed out" in late.value[0], "late data is never taken for fresh"


def destroy_beside_the_stopped(rank: int, world: int) -> float:
    dist.barrier()
    tell("ready")
    listen()
    work = dist.all_reduce(torch.ones(N), async_op=True) if rank == 0 else None
    begin = time.monotonic()
    dist.destroy_process_group()
    took = time.monotonic() - begin
    if work is not None:
        message_of(work.wait)
    return took


def test_F25_destroy_does_not_wait_for_a_rank_that_hangs() -> None:
    with Ranks(destroy_beside_the_stopped, 4) as ranks:
        for rank in range(4):
            ranks.hear(rank)
        ranks.signal(3, signal.SIGSTOP)
        for rank in range(4):
            ranks.say(rank)
        for outcome in ranks.join(20, [0, 1, 2]):
            assert outcome.ok, outcome.describe()
            assert outcome.value < SLACK, f"destroy took {outcome.value} s"


def abort_in_a_call(rank: int, world: int) -> tuple[str, float]:
    dist.barrier()
    tell("ready")
    if rank == 0:
        work = dist.all_reduce(torch.ones(N), async_op=True)
        time.sleep(0.1)
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        when = time.monotonic()
        return message_of(work.wait), when
    if rank == 1:
        time.sleep(30)  # never comes
        return "", 0.0
    return message_of(lambda: dist.all_reduce(torch.ones(N))), time.monotonic()


def test_F25_abort_ends_the_waits_of_all_ranks() -> None:
    with Ranks(abort_in_a_call, 3) as ranks:
        first, second = ranks.join(15, [0, 2])
        assert first.ok, first.describe()
        assert second.ok, second.describe()
        assert second.value[1] - first.value[1] < SLACK
        for outcome in (first, second):
            assert "rank 0" in outcome.value[0] and "abort" in outcome.value[0], outcome.value


def straggle(rank: int, world: int, delay: float) -> str:
    dist.barrier()
    if rank == 1:
        time.sleep(delay)
    try:
        dist.all_reduce(torch.ones(N))
    except RuntimeError as error:
        return str(error)
    return "passed"


@pytest.mark.parametrize("delay", [0.5, 0.8])
def test_F33_a_slow_rank_is_not_a_dead_one(delay: float) -> None:
    assert run_ranks(straggle, 3, delay, group_timeout=1) == ["passed"] * 3


def test_F33_a_rank_slower_than_the_timeout_is_named_with_the_call() -> None:
    for message in run_ranks(straggle, 3, 2.0, group_timeout=1)[::2]:
        assert "rank 1" in message and "all_reduce" in message and "1000 ms" in message, message


def lengthen(rank: int, world: int) -> str:
    import dda

    dda.set_timeout(10)
    return straggle(rank, world, 1.5)


def test_F33_the_limit_can_be_changed() -> None:
    assert run_ranks(lengthen, 2, group_timeout=1) == ["passed"] * 2


def late_by_wait(rank: int, world: int) -> tuple[str, float]:
    dist.barrier()
    if rank == 1:
        time.sleep(1.5)
    begin = time.monotonic()
    work = dist.all_reduce(torch.ones(N), async_op=True)
    if rank == 1:
        with contextlib.suppress(RuntimeError):
            work.wait()
        return "", 0.0
    message = message_of(lambda: work.wait(timedelta(seconds=0.5)))
    return message, time.monotonic() - begin


def test_F15_wait_with_a_timeout_of_its_own_raises() -> None:
    message, took = run_ranks(late_by_wait, 2, timeout=20)[0]
    assert "time" in message.lower() and 0.4 < took < 0.5 + SLACK, (message, took)


def never_sent(rank: int, world: int) -> str:
    dist.barrier()
    if rank == 0:
        return message_of(lambda: dist.recv(torch.ones(N), 1))
    time.sleep(2)
    return ""


def test_F25_a_message_that_never_comes() -> None:
    message = run_ranks(never_sent, 2, group_timeout=1, timeout=20)[0]
    assert "Timed out" in message and "rank 1" in message, message


def shm_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


def sockets() -> int:
    with open("/proc/net/unix") as lines:
        return sum(bool(re.search(r"@dda-", line)) for line in lines)


def work_until_killed(rank: int, world: int) -> None:
    tell("ready")
    for _ in range(10**9):
        dist.all_reduce(torch.ones(N))


def test_F42_killing_every_rank_leaves_nothing_behind() -> None:
    before = shm_files()
    for attempt in range(20):
        with Ranks(work_until_killed, 3) as ranks:
            if attempt % 4 == 0:
                for rank in range(3):
                    ranks.hear(rank)
            else:
                time.sleep(0.01 * attempt)  # at some stage of starting
            for rank in range(3):
                ranks.signal(rank, signal.SIGKILL)
            ranks.join(10)
    assert shm_files() <= before
    assert sockets() == 0
    run_ranks(straggle, 3, 0.0)


def killed_in_rendezvous(rank: int, world: int) -> str:
    from tests.multiprocess.harness import store_of

    importlib.import_module("dda")  # the harness imports it only where it makes the group
    port, prefix = listen()
    if rank == 1:
        os._exit(1)
    return message_of(
        lambda: dist.init_process_group(
            BACKEND, store=store_of(port, prefix, 3), rank=rank, world_size=world,
            timeout=timedelta(seconds=3),
        )
    )  # fmt: skip


def test_F42_a_rank_that_dies_before_the_rendezvous_is_an_error_in_time() -> None:
    from tests.multiprocess.harness import _store

    with Ranks(killed_in_rendezvous, 3, backend=None) as ranks:
        for rank in range(3):
            ranks.say(rank, (_store().port, "lost-in-rendezvous"))
        for outcome in ranks.join(30, [0, 2]):
            assert outcome.ok, outcome.describe()
            assert "rank 1" in outcome.value or "time" in outcome.value.lower(), outcome.value
