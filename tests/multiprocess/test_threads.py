"""Calls from several threads, queued calls, many ranks on few cores, long runs of mixed calls."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.cases import SMALL_SLOTS, message_of
from tests.multiprocess.harness import Ranks, run_ranks
from tests.multiprocess.reference import assert_same_bits, reduced, values


def run_threads(*bodies: Callable[[], object]) -> None:
    """Runs each body in a thread of its own and raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def a_group_for_each_thread(rank: int, world: int) -> None:
    groups = [dist.new_group(list(range(world))) for _ in range(3)]

    def work(group: dist.ProcessGroup, n: int) -> None:
        for i in range(200):
            x = torch.full((n,), float(rank + i))
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((n,), float(world * i + sum(range(world))))), i

    run_threads(
        *(lambda g=g, n=n: work(g, n) for g, n in zip(groups, (1, 300, 20_000), strict=True))
    )


def test_F30_threads_with_a_group_each() -> None:
    run_ranks(a_group_for_each_thread, 2, env=SMALL_SLOTS)


def threads_on_one_group(rank: int, world: int) -> None:
    """Calls that any order pairs rightly: equal ones, and messages with a tag a thread."""

    def reduce() -> None:
        for _ in range(300):
            x = torch.ones(64)
            dist.all_reduce(x)
            assert torch.equal(x, torch.full((64,), float(world)))

    def talk(tag: int) -> None:
        for i in range(100):
            x = torch.full((64,), float(i))
            if rank == 0:
                dist.send(x, 1, tag=tag)
            else:
                got = torch.empty(64)
                dist.recv(got, 0, tag=tag)
                assert torch.equal(got, x)

    run_threads(reduce, reduce, lambda: talk(1), lambda: talk(2))


def test_F30_threads_on_one_group_are_serialised() -> None:
    run_ranks(threads_on_one_group, 2)


def opposite_order(rank: int, world: int) -> int:
    """Two threads whose calls differ, in an order of chance: paired rightly or an error."""
    wrong = 0
    lock = threading.Lock()

    def work(n: int) -> None:
        nonlocal wrong
        for _ in range(200):
            x = torch.ones(n)
            try:
                dist.all_reduce(x)
            except RuntimeError as error:
                with lock:
                    wrong += 1
                assert "elements" in str(error), error
                assert torch.equal(x, torch.ones(n)), "an output was written"
            else:
                assert torch.equal(x, torch.full((n,), float(world))), "a silent wrong answer"

    run_threads(lambda: work(100), lambda: work(200))
    return wrong


def test_F30_opposite_orders_raise_or_are_right() -> None:
    run_ranks(opposite_order, 2, group_timeout=20)


def random_calls(rank: int, world: int) -> None:
    same, own = random.Random(1), random.Random(rank + 2)
    for i in range(1000):
        n = same.choice([1, 3, 64, 1000, 1024, 4097, 30_000])
        how = same.randrange(4)
        parts = [torch.full((n,), float(r + i % 7)) for r in range(world)]
        x = parts[rank].clone()
        if own.random() < 0.02:
            time.sleep(own.random() * 0.003)
        if how == 0:
            y = torch.empty(n * world)
            dist.all_gather_into_tensor(y, x)
            assert torch.equal(y, torch.cat(parts)), i
        elif how == 1:
            dist.broadcast(x, i % world)
            assert torch.equal(x, parts[i % world]), i
        else:
            dist.all_reduce(x)
            assert torch.equal(x, reduced(parts, "sum")), i


@pytest.mark.parametrize("env", [{}, SMALL_SLOTS])
def test_F27_a_thousand_calls_of_random_size_and_delay(env: dict[str, str]) -> None:
    run_ranks(random_calls, 3, env=env)


def oversubscribed(rank: int, world: int) -> None:
    for n in (1, 1000, 100_000):
        for _ in range(20):
            x = torch.full((n,), float(rank))
            dist.all_reduce(x)
            assert x[0] == world * (world - 1) / 2 and torch.equal(x, x[0].expand(n))


def test_F29_more_ranks_than_cores() -> None:
    run_ranks(oversubscribed, 8, timeout=60)


def idle(rank: int, world: int) -> float:
    dist.barrier()
    if rank == 0:
        time.sleep(1)
    begin = time.process_time()
    dist.barrier()
    return time.process_time() - begin


def test_F29_a_rank_that_waits_leaves_its_core_to_others() -> None:
    for used in run_ranks(idle, 4)[1:]:
        assert used < 0.3, f"{used} s of CPU in a wait of 1 s"


def only_poll(rank: int, world: int) -> None:
    x = torch.full((50_000,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    deadline = time.monotonic() + 10
    while not work.is_completed():
        assert time.monotonic() < deadline, "no progress without wait()"
        time.sleep(0.001)
    assert torch.equal(x, torch.full((50_000,), 3.0))
    work.wait()
    work.wait()
    assert work.is_success()
    with contextlib.suppress(TypeError):  # torch 2.11 has no Python type for it
        assert work.exception() is None
    future = dist.all_reduce(x, async_op=True).get_future()
    assert torch.equal(future.wait()[0], torch.full((50_000,), 9.0))
    done = []
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: done.append(f.value()))
    future.wait()
    assert len(done) == 1
    dist.all_reduce(x, async_op=True)  # the handle is dropped
    dist.barrier()
    assert x[0] == 81.0


def test_F15_asynchronous_calls_progress_without_wait() -> None:
    run_ranks(only_poll, 3, timeout=20)


def readable_error(rank: int, world: int) -> None:
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    first, second = message_of(work.wait), message_of(work.wait)
    assert first == second
    assert work.is_completed() and not work.is_success()
    future = dist.all_reduce(torch.ones(3 + rank), async_op=True).get_future()
    assert "elements" in message_of(future.wait)
    dist.barrier()


def test_F15_a_failed_call_raises_at_every_wait() -> None:
    run_ranks(readable_error, 2, group_timeout=20)


def long_queue(rank: int, world: int) -> None:
    tensors = [values((i * 37 % 5000,), torch.float32, i, rank, special=False) for i in range(200)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    mixed = torch.full((7,), float(rank))
    dist.all_reduce(mixed)  # synchronous, behind the queued ones
    assert torch.equal(mixed, torch.full((7,), 3.0))
    for work in works[::-1]:
        work.wait()
    for i, x in enumerate(tensors):
        parts = [values(tuple(x.shape), torch.float32, i, r, special=False) for r in range(world)]
        assert_same_bits(x, reduced(parts, "sum"), f"call {i}")


def test_queued_and_synchronous_calls_keep_their_order() -> None:
    run_ranks(long_queue, 3)


def coalesced(rank: int, world: int) -> None:
    cpu = torch.device("cpu")
    for is_async in (False, True):
        sums = [torch.full((n,), float(rank)).to(d) for n, d in
                ((5, torch.float32), (0, torch.float32), (700, torch.float32))]  # fmt: skip
        with dist._coalescing_manager(device=cpu, async_ops=is_async) as manager:
            for x in sums:
                dist.all_reduce(x)
        if is_async:
            manager.wait()
        gathered = [torch.empty(world * n) for n in (3, 1000, 8)]
        with dist._coalescing_manager(device=cpu, async_ops=is_async) as manager:
            for y in gathered:
                dist.all_gather_into_tensor(y, torch.full((len(y) // world,), float(rank)))
        if is_async:
            manager.wait()
        scattered = [torch.empty(n) for n in (3, 1000, 8)]
        with dist._coalescing_manager(device=cpu, async_ops=is_async) as manager:
            for z in scattered:
                dist.reduce_scatter_tensor(z, torch.ones(len(z) * world))
        if is_async:
            manager.wait()
        for x in sums:
            assert torch.equal(x, torch.full_like(x, 3.0))
        for y in gathered:
            assert torch.equal(y, torch.arange(3.0).repeat_interleave(len(y) // world))
        for z in scattered:
            assert torch.equal(z, torch.full_like(z, 3.0))
    with dist._coalescing_manager(device=cpu):
        pass
    x = torch.ones(3)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), 3.0)), "a plain call after a block"


def test_F16_coalesced_calls() -> None:
    run_ranks(coalesced, 3)


def ranks_that_are_threads(rank: int, world: int) -> None:
    """A group of three, of which this process's threads are two in rank 0, and one in rank 1."""
    dda = importlib.import_module("dda")
    store = dist.PrefixStore("threads", dist.distributed_c10d._get_default_store())
    mine = (0, 1) if rank == 0 else (2,)
    options = dda.Options(timedelta(seconds=10))

    def body(r: int) -> None:
        backend = dda._C.create_backend(store, r, 3, options)
        for late in (0, 1, 2):
            if r == late:  # the others wait long enough to ask whether it is alive
                time.sleep(0.5)
            x = torch.full((3,), r + 1.0)
            backend.allreduce([x]).wait()
            assert torch.equal(x, torch.full((3,), 6.0))

    run_threads(*(lambda r=r: body(r) for r in mine))


def test_two_ranks_in_one_process() -> None:
    run_ranks(ranks_that_are_threads, 2, backend="gloo", timeout=30)


def die_with_both_ranks(rank: int, world: int) -> str:
    """As above; then the process of two ranks is killed, which its peer must notice."""
    dda = importlib.import_module("dda")
    store = dist.PrefixStore("threads", dist.distributed_c10d._get_default_store())
    options = dda.Options(timedelta(seconds=10))
    if rank == 0:
        backends = [None, None]

        def make(r: int) -> None:
            backends[r] = dda._C.create_backend(store, r, 3, options)

        run_threads(lambda: make(0), lambda: make(1))
        os.kill(os.getpid(), signal.SIGKILL)
    backend = dda._C.create_backend(store, 2, 3, options)
    return message_of(lambda: backend.allreduce([torch.ones(3)]).wait())


def test_F24_the_process_of_two_ranks_dies() -> None:
    with Ranks(die_with_both_ranks, 2, backend="gloo") as ranks:
        outcome = ranks.outcome(1, timeout=8)
        assert outcome.value is not None and "died" in outcome.value, outcome.describe()


def core_of_this_thread() -> int:
    return int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[36])


def crowded(rank: int, world: int) -> tuple[set[int], list[int]]:
    """Puts all ranks on one core, lets them go, and says where they are after some calls each."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    dist.barrier()
    os.sched_setaffinity(0, allowed)
    x = torch.ones(8)
    cores = []
    for _ in range(20):
        for _ in range(50):
            dist.all_reduce(x)
        cores.append(core_of_this_thread())
    return os.sched_getaffinity(0) - allowed | allowed - os.sched_getaffinity(0), cores


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_on_one_core_part_and_keep_their_affinity() -> None:
    (changed_0, cores_0), (changed_1, cores_1) = run_ranks(crowded, 2)
    assert not changed_0 and not changed_1
    assert any(a != b for a, b in zip(cores_0, cores_1, strict=True)), (cores_0, cores_1)
