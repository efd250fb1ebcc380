"""Groups: made in any order and number, destroyed, made again; processes that fork or just exit."""

from __future__ import annotations

import gc
import importlib
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.cases import message_of
from tests.multiprocess.harness import BACKEND, Ranks, listen, run_ranks, tell


def check_sum(group: dist.ProcessGroup | None = None, n: int = 5) -> None:
    """A collective over `group` gives what it must."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    x = torch.full((n,), float(dist.get_rank()))
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full((n,), float(sum(ranks)))), (ranks, x)


def global_and_group_ranks(rank: int, world: int) -> None:
    for members in ([2, 1], [1, 2]):
        group = dist.new_group(members)
        if rank not in members:
            continue
        check_sum(group)
        order = dist.get_process_group_ranks(group)
        for root in members:
            for how in ({"src": root}, {"group_src": order.index(root)}):
                x = torch.full((3,), float(rank))
                dist.broadcast(x, group=group, **how)
                assert torch.equal(x, torch.full((3,), float(root))), (members, how)
                box = [rank]
                dist.broadcast_object_list(box, group=group, **how)
                assert box == [root]
                got = torch.zeros(1)
                parts = [torch.full((1,), float(r)) for r in order] if rank == root else None
                dist.scatter(got, parts, group=group, **how)
                assert got.item() == rank
            for how in ({"dst": root}, {"group_dst": order.index(root)}):
                x = torch.full((3,), float(rank))
                dist.reduce(x, group=group, **how)
                assert x[0].item() == (3.0 if rank == root else rank)
                parts = [torch.zeros(1) for _ in order] if rank == root else None
                dist.gather(torch.full((1,), float(rank)), parts, group=group, **how)
                assert parts is None or [p.item() for p in parts] == [float(r) for r in order]
        assert message_of(lambda: dist.broadcast(torch.ones(1), 0, group=group))  # noqa: B023
        check_sum(group)


def test_F17_roots_by_global_and_by_group_rank() -> None:
    run_ranks(global_and_group_ranks, 3)


def groups_in_any_order(rank: int, world: int, is_reversed: bool) -> None:
    groups: list[dist.ProcessGroup | None] = []
    # Each rank makes as many groups as its peers: torch counts them in the names of such groups.
    for members in ([0, 1], [2, 3], [0, 1, 2, 3]):
        if rank in members:  # on members only
            groups.append(dist.new_group(members, use_local_synchronization=True))
    for group in groups:
        check_sum(group)
    check_sum()
    for group in groups[::-1] if is_reversed else groups:
        dist.destroy_process_group(group)
    check_sum()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_F18_groups_of_members_only_in_any_order_of_destruction(is_reversed: bool) -> None:
    run_ranks(groups_in_any_order, 4, is_reversed, timeout=30)


def split_then_new(rank: int, world: int) -> None:
    parent = dist.group.WORLD
    child = parent.split_group([0, 1] if rank < 2 else [2, 3])
    x = torch.full((4,), float(rank))
    child.allreduce([x]).wait()
    assert torch.equal(x, torch.full((4,), 1.0 if rank < 2 else 5.0)), x
    pairs = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    check_sum(pairs[0] if rank in (0, 3) else pairs[1])
    check_sum()


def test_F18_split_then_new_group() -> None:
    run_ranks(split_then_new, 4, timeout=30)


def init_again(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    for cycle in range(50):
        if cycle % 2 == 0:
            check_sum(n=cycle + 1)
        dist.destroy_process_group()
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world)
    check_sum()


def test_F21_init_and_destroy_with_one_store() -> None:
    run_ranks(init_again, 2, timeout=60)


def disjoint_at_once(rank: int, world: int) -> None:
    outer = rank in (0, 3)
    group = dist.new_group([0, 3] if outer else [1, 2], use_local_synchronization=True)
    check_sum(group)
    for _ in range(20):
        check_sum(group, 100)
    alone = dist.new_group([0])
    if rank == 0:
        check_sum(alone)
    dist.barrier()


def test_F22_disjoint_groups_made_at_the_same_place() -> None:
    run_ranks(disjoint_at_once, 4, timeout=30)


def two_groups_of_the_same_ranks(rank: int, world: int) -> None:
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank < 2:
        luck = random.Random(3)
        for _ in range(100):
            check_sum(luck.choice([one, two]), luck.choice([1, 1000, 50_000]))
        works = []
        tensors = [torch.full((2000,), float(rank + i)) for i in range(20)]
        for i, x in enumerate(tensors):  # in the queues of both groups at once
            works.append(dist.all_reduce(x, group=(one, two)[i % 2], async_op=True))
        for i, (x, work) in enumerate(zip(tensors, works, strict=True)):
            work.wait()
            assert torch.equal(x, torch.full((2000,), 1.0 + 2 * i))
    check_sum()


def test_F26_two_groups_of_the_same_ranks_do_not_mix() -> None:
    run_ranks(two_groups_of_the_same_ranks, 4)


def pairs_at_different_times(rank: int, world: int) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank >= 2:
        time.sleep(0.5)
    check_sum(pairs[rank // 2])
    if rank < 2:  # the other pair idles
        for _ in range(50):
            check_sum(pairs[0])


def test_F28_only_members_take_part() -> None:
    run_ranks(pairs_at_different_times, 4, timeout=20)


def create_with_delays(rank: int, world: int) -> None:
    luck = random.Random(rank)
    for i in range(60):
        group = dist.new_group(list(range(world)), use_local_synchronization=True)
        if luck.random() < 0.3:
            time.sleep(luck.random() * 0.01)
        check_sum(group, i)
        dist.destroy_process_group(group)


def test_F32_a_fast_rank_uses_a_group_before_a_slow_one_does() -> None:
    run_ranks(create_with_delays, 3, timeout=60)


def usage() -> dict[str, int]:
    """What this process holds: KiB of memory, descriptors, threads, mappings."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {
        "kib": int(fields["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def cycle(rank: int, world: int, cycles: int, warm: int) -> tuple[dict[str, int], dict[str, int]]:
    """Groups by the backend's own constructor: torch's table of groups only grows."""
    from datetime import timedelta

    from dda import _C

    store = dist.distributed_c10d._get_default_store()
    for i in range(cycles):
        if i == warm:
            gc.collect()
            first = usage()
        own = dist.PrefixStore(f"cycle{i}", store)
        group = _C.create_backend(own, rank, world, _C.Options(timeout=timedelta(seconds=20)))
        x = torch.ones(100)
        group.allreduce([x]).wait()
        assert x[0] == world
        if i % 10 == 0:
            work = group.allreduce([x], dist.AllreduceOptions())
            work.wait()
        group.shutdown()
        if i % 3 == 0:
            group.shutdown()
    del group
    gc.collect()
    return first, usage()


def test_F44_a_thousand_groups_one_after_the_other_leak_nothing() -> None:
    for first, last in run_ranks(cycle, 2, 1000, 100, timeout=120):
        print(f"after 100 groups {first}, after 1000 {last}")
        assert last["descriptors"] <= first["descriptors"] + 2
        assert last["threads"] <= first["threads"] + 1
        assert last["mappings"] <= first["mappings"] + 20
        assert last["kib"] <= first["kib"] + 8 * 1024, (first, last)


def many_at_once(rank: int, world: int) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    before = usage()
    groups = [dist.new_group([0, 1]) for _ in range(200)]
    for i, group in enumerate(groups):
        check_sum(group, i)
    live = usage()
    for group in groups:
        dist.destroy_process_group(group)
    del groups, group
    gc.collect()
    check_sum()
    return before, live, usage()


def test_F44_two_hundred_groups_at_once() -> None:
    for before, live, after in run_ranks(many_at_once, 2, timeout=90):
        print(f"before {before}, with 200 groups {live}, after {after}")
        assert live["descriptors"] - before["descriptors"] <= 20, "descriptors grow with groups"
        assert after["descriptors"] <= before["descriptors"] + 20
        assert after["threads"] <= before["threads"] + 2
        assert after["mappings"] <= before["mappings"] + 100
        assert live["kib"] - before["kib"] < 2_000_000


def destroy_twice(rank: int, world: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    check_sum()
    begin = time.monotonic()
    for _ in range(3):
        backend.shutdown()
    assert time.monotonic() - begin < 1
    message = message_of(lambda: dist.all_reduce(torch.ones(3)))
    assert "closed" in message or "destroyed" in message or "shut" in message, message
    dist.destroy_process_group()
    backend.shutdown()


def test_F25_destroy_is_idempotent_and_later_calls_say_so() -> None:
    run_ranks(destroy_twice, 2, timeout=20)


def finish_early(rank: int, world: int, name: str) -> None:
    """A rank may leave as soon as its own part is done; what it gave still arrives."""
    root = 0
    x = torch.full((30_000,), float(rank))
    parts = [torch.full((3,), float(r)) for r in range(world)]
    if rank != root:
        time.sleep(0.2)
    if name == "broadcast":
        dist.broadcast(x, root)
        assert torch.equal(x, torch.zeros(30_000))
    elif name == "scatter":
        got = torch.zeros(3)
        dist.scatter(got, parts if rank == root else None, root)
        assert torch.equal(got, parts[rank])
    elif name == "send":
        if rank == root:
            dist.send(torch.full((10,), 7.0), 1)
        elif rank == 1:
            got = torch.zeros(10)
            dist.recv(got, root)
            assert torch.equal(got, torch.full((10,), 7.0))
    else:
        dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["broadcast", "scatter", "send", "barrier"])
def test_a_rank_that_is_done_may_leave(name: str) -> None:
    run_ranks(finish_early, 3, name, timeout=20)


def fork(rank: int, world: int, is_quiet: bool) -> None:
    check_sum()
    pid = os.fork()
    if pid == 0:
        if is_quiet:
            os._exit(0)
        # The child must not touch the memory that it shares with the parent's peers.
        try:
            message = message_of(lambda: dist.all_reduce(torch.ones(3)))
            dist.destroy_process_group()
            os._exit(0 if "fork" in message else 3)
        except BaseException:
            os._exit(4)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0, f"the child's status: {status}"
    for _ in range(10):
        check_sum()


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_forked_child_raises_and_the_parent_goes_on(is_quiet: bool) -> None:
    run_ranks(fork, 2, is_quiet, timeout=20)


def die_with_a_child(rank: int, world: int) -> tuple[str, float]:
    """A child that outlives its parent does not make the parent look alive."""
    check_sum()
    if rank == 1:
        pid = os.fork()
        if pid == 0:
            time.sleep(8)
            os._exit(0)
        tell(pid)
        time.sleep(0.2)
        os._exit(1)
    return message_of(dist.barrier), time.monotonic()


def test_F24_a_forked_child_does_not_keep_its_parent_alive() -> None:
    import signal

    with Ranks(die_with_a_child, 2) as ranks:
        child = ranks.hear(1)
        begin = time.monotonic()
        outcome = ranks.outcome(0, 6)
        os.kill(child, signal.SIGKILL)
        assert outcome.ok, outcome.describe()
        assert "rank 1" in outcome.value[0] and outcome.value[1] - begin < 2


SCRIPT = """
import sys, torch, torch.distributed as dist
import dda
rank, address, how = int(sys.argv[1]), "tcp://127.0.0.1:" + sys.argv[2], sys.argv[3]
dist.init_process_group("{backend}", init_method=address, rank=rank, world_size=2)
x = torch.ones(1000)
work = dist.all_reduce(x, async_op=True)
if how == "waited":
    work.wait()
elif how == "destroyed":
    work.wait()
    dist.destroy_process_group()
print("done")
"""


@pytest.mark.parametrize("how", ["waited", "destroyed", "dropped"])
def test_F25_a_program_that_just_ends(how: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = SCRIPT.format(backend=BACKEND)
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), port, how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for program in programs:
        try:
            out, err = program.communicate(timeout=30)
        finally:
            program.kill()
        if how != "dropped":
            assert program.returncode == 0 and "done" in out, (program.returncode, out, err)
        # One that drops an unfinished call may leave its peer with an error, not with a crash.
        assert program.returncode in (0, 1), (program.returncode, err)
        assert "terminate called" not in err, err


def bad_environment(rank: int, world: int) -> str:
    importlib.import_module("dda")  # a new process, in which nothing has registered the backend
    return message_of(
        lambda: dist.init_process_group(BACKEND, store=listen_store(), rank=rank, world_size=world)
    )


def listen_store() -> dist.Store:
    from tests.multiprocess.harness import store_of

    return store_of(*listen(), 10)


@pytest.mark.parametrize(
    ("envs", "words"),
    [
        ([{"DDA_SLOT_BYTES": "64K"}, {"DDA_SLOT_BYTES": "128K"}], ["65536", "131072"]),
        ([{}, {"DDA_SLOT_BITES": "64K"}], ["DDA_SLOT_BITES"]),
        ([{"DDA_SLOT_BYTES": "many"}, {}], ["DDA_SLOT_BYTES", "many"]),
        ([{"DDA_SPIN": "-5"}, {}], ["DDA_SPIN"]),
        ([{"DDA_ISA": "mmx"}] * 2, ["DDA_ISA", "mmx"]),
    ],
)
def test_F34_a_bad_environment_is_an_error_on_every_rank(
    envs: list[dict[str, str]], words: list[str]
) -> None:
    from tests.multiprocess.harness import _store

    with Ranks(bad_environment, 2, backend=None, env=envs) as ranks:
        for rank in range(2):
            ranks.say(rank, (_store().port, f"bad{words}"))
        for outcome in ranks.join(25):
            assert outcome.ok, outcome.describe()
            for word in words:
                assert word in outcome.value, outcome.value
