"""What only GPUs have: streams, graphs, kernels that wait, and peers that die meanwhile."""

from __future__ import annotations

import importlib
import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess import cases as c
from tests.multiprocess.harness import Ranks, listen, run_ranks, tell
from tests.multiprocess.reference import assert_same_bits, reduced, values

pytestmark = pytest.mark.gpu

# Elements of float32: by push in one block, in many, at its end, and through the ring.
COUNTS = (1, 31, 2048, 65_537, 262_144, 262_145, 1_000_003)
without_mps = pytest.mark.skipif(
    "CUDA_MPS_PIPE_DIRECTORY" in os.environ, reason="MPS does not survive the death of a client"
)


def dda_module() -> Any:
    return importlib.import_module("dda")


def sum_of(world: int, step: int = 0) -> float:
    return float(sum(range(1, world + 1)) + world * step)


def behind_a_producer(rank: int, world: int) -> None:
    other = torch.cuda.Stream()
    load = torch.randn(512, 512)
    for n in COUNTS:
        for step in range(20):
            with torch.cuda.stream(other):
                load @ load
            if step % 5 == rank:
                torch.cuda._sleep(200_000)
            x = torch.full((n,), float(rank + 1)) + step
            dist.all_reduce(x)
            x += 1
            assert torch.equal(x, torch.full((n,), sum_of(world, step) + 1)), (n, step)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_calls_follow_the_kernels_before_them_and_precede_those_after(world: int) -> None:
    run_ranks(behind_a_producer, world, timeout=120)


def on_streams(rank: int, world: int) -> None:
    """Calls of several streams and of asynchronous work, in one order on all ranks."""
    side = torch.cuda.Stream()
    for n in COUNTS:
        x, y, z = (torch.full((n,), float(rank + k)) for k in range(3))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000)
            dist.all_reduce(x)
        work = dist.all_reduce(y, async_op=True)
        dist.all_reduce(z)
        work.wait()
        torch.cuda.current_stream().wait_stream(side)
        base = sum(range(world))
        for k, got in enumerate((x, y, z)):
            assert torch.equal(got, torch.full((n,), float(base + world * k))), (n, k)
    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    assert torch.equal(future.wait()[0], torch.full((5,), float(world)))
    # The memory of asynchronous calls that nobody waits for is not given away too early.
    for _ in range(50):
        dist.all_reduce(torch.full((100_000,), 1.0), async_op=True)
        torch.full((100_000,), 7.0)
    last = torch.ones(3)
    dist.all_reduce(last)
    assert torch.equal(last, torch.full((3,), float(world)))
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    assert work.wait(timedelta(seconds=30)) and work.is_completed()


@pytest.mark.parametrize("world", [2, 3])
def test_calls_of_several_streams(world: int) -> None:
    run_ranks(on_streams, world, group_timeout=15)


def replays(rank: int, world: int, count: int) -> None:
    """Two graphs of one group, with calls in between; what they find wrong is counted on the GPU.

    The data change with every replay, and now and then a rank is late.
    """
    dda = dda_module()
    dda.warmup(device="cuda")
    step, wrong = torch.zeros(()), torch.zeros(())
    sizes = (700, 5000, 400_000)

    def calls() -> None:
        step.add_(1)
        for n in sizes:
            x = torch.full((n,), float(rank)) + step
            dist.all_reduce(x)
            wrong.add_((x != sum(range(world)) + world * step).any())
            whole = torch.empty(world * n // 4)
            dist.all_gather_into_tensor(whole, torch.full((n // 4,), float(rank)) + step)
            parts = whole.view(world, -1) - torch.arange(float(world)).unsqueeze(1)
            wrong.add_((parts != step).any())
        y = dda.all_reduce(torch.full((9,), rank, dtype=torch.int32) + step.int())
        wrong.add_((y != sum(range(world)) + world * step.int()).any())

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls()
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            calls()
        graphs.append(graph)
    for i in range(count):
        if i % 500 == 17 * (rank + 1):
            torch.cuda._sleep(2_000_000)
        graphs[i % 2].replay()
        if i % 1000 == 3:
            calls()
    torch.cuda.synchronize()
    assert step.item() == count + 1 + len(range(3, count, 1000)), step
    assert wrong.item() == 0, f"{wrong.item()} wrong results"


@pytest.mark.parametrize(("world", "count"), [(1, 100), (2, 10_000), (4, 1000)])
def test_graphs_are_replayed_with_changing_data(world: int, count: int) -> None:
    run_ranks(replays, world, count, timeout=240)


def graph_outlives_group(rank: int, world: int) -> str:
    group = dist.new_group(backend="dda")
    dda_module().warmup(group, device="cuda")
    x = torch.ones(1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x, group=group)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full((1000,), float(world)))
    dist.barrier()
    dist.destroy_process_group(group)
    start = time.monotonic()
    graph.replay()  # writes nothing that is of use, and ends
    torch.cuda.synchronize()
    assert time.monotonic() - start < 10
    assert torch.equal(torch.arange(5.0).sum(), torch.tensor(10.0))
    check = torch.ones(7)
    dist.all_reduce(check)
    assert torch.equal(check, torch.full((7,), float(world)))
    del graph
    return "done"


def test_a_graph_may_outlive_its_group() -> None:
    assert run_ranks(graph_outlives_group, 2) == ["done"] * 2


def capture_first(rank: int, world: int) -> str:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(4)
    with torch.cuda.graph(graph):
        message = c.message_of(lambda: dist.all_reduce(x))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((4,), float(world)))
    return message


def test_a_capture_before_the_group_is_ready_is_refused() -> None:
    for message in run_ranks(capture_first, 2):
        assert "dda.warmup" in message and "graph" in message


def two_groups(rank: int, world: int) -> None:
    groups = [dist.group.WORLD, dist.new_group(backend="dda")]
    for step in range(300):
        xs = [torch.full((n,), float(rank + step)) for n in (100, 70_000)]
        for k in (0, 1):
            dist.all_reduce(xs[k], group=groups[(step + k) % 2])
        want = float(sum(range(world)) + world * step)
        assert all(torch.equal(x, torch.full_like(x, want)) for x in xs), step


def test_F26_two_groups_over_the_same_devices() -> None:
    run_ranks(two_groups, 3)


def over_the_wrap(rank: int, world: int, before: int) -> None:
    dda = dda_module()
    options = dda.Options(calls_before=before)
    group = dist.new_group(backend="dda", pg_options=options)
    for step in range(40):
        for dtype, n in ((torch.float32, 300), (torch.int32, 300), (torch.float32, 600_000)):
            x = torch.full((n,), rank + step, dtype=dtype)
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full_like(x, sum(range(world)) + world * step)), (step, n)


@pytest.mark.parametrize("before", [2**32 - 20, 2**31 - 20, 2**28 - 20])
def test_F30_counters_wrap(before: int) -> None:
    run_ranks(over_the_wrap, 2, before)


def large(rank: int, world: int) -> None:
    for n in (5_000_001, 40_000_000):
        x = torch.arange(n, dtype=torch.int32) + rank
        dist.all_reduce(x)
        want = torch.arange(n, dtype=torch.int32) * world + sum(range(world))
        assert torch.equal(x, want)
        y = (torch.arange(n) % 1000).float() + rank
        for algorithm in ("flat", "tree"):
            z = dda_module().all_reduce(y, algorithm=algorithm)
            assert torch.equal(z, (torch.arange(n) % 1000).float() * world + sum(range(world)))


@pytest.mark.parametrize("world", [2, 3])
def test_messages_larger_than_the_arena(world: int) -> None:
    run_ranks(large, world, timeout=120)


def on_both_devices(rank: int, world: int) -> None:
    for n in (3, 100_000):
        parts = [values((n,), torch.float32, n, r) for r in range(world)]
        mine = parts[rank].clone()
        there = parts[rank].cuda()
        dist.all_reduce(mine)
        dist.all_reduce(there)
        assert_same_bits(there, reduced(parts, "sum"))
        assert_same_bits(mine, reduced(parts, "sum"))
    dist.barrier()


def test_one_group_serves_both_devices() -> None:
    run_ranks(on_both_devices, 2)


def wrong_devices(rank: int, world: int) -> None:
    dda = dda_module()
    gpu, cpu = torch.ones(4), torch.ones(4, device="cpu")
    message = c.message_of(lambda: dda.all_reduce(gpu, out=cpu))
    assert "cpu" in message and "cuda" in message, message
    dda.all_reduce(gpu, out=gpu)
    assert torch.equal(gpu, torch.full((4,), float(world)))


def test_tensors_on_different_devices_are_refused() -> None:
    run_ranks(wrong_devices, 2)


def differ(rank: int, world: int, how: str) -> str:
    x = torch.ones(100)
    dist.all_reduce(x)
    n = 100 if rank == 0 else 101
    began = time.monotonic()

    def calls() -> None:
        if how == "push":
            dist.all_reduce(torch.ones(n))
        elif how == "ring":
            dist.all_reduce(torch.ones(n * 10_000))
        elif how == "kind":
            if rank == 0:
                dist.all_reduce(torch.ones(64))
            else:
                dist.broadcast(torch.ones(64), 0)
        else:
            splits = [n, 100] if rank == 0 else [100, 100]
            dist.all_to_all_single(torch.ones(sum(splits)), torch.ones(200), splits, [100, 100])
        torch.cuda.synchronize()
        for _ in range(100):
            time.sleep(0.01)
            dist.all_reduce(torch.ones(5))

    message = c.message_of(calls)
    assert time.monotonic() - began < 20
    torch.cuda.synchronize()  # nothing hangs, and the context is as before
    assert (torch.ones(3) + 1).sum().item() == 6.0
    assert c.message_of(lambda: dist.all_reduce(x))
    dist.destroy_process_group()
    return message


@pytest.mark.parametrize("how", ["push", "ring", "kind"])
def test_F12_ranks_that_call_different_things_all_raise(how: str) -> None:
    for message in run_ranks(differ, 2, how):
        assert "same calls in the same order" in message and "all_reduce" in message, message


def splits_differ(rank: int, world: int) -> str:
    def call() -> None:
        out = [3, 5] if rank == 0 else [4, 3]
        put = [3, 4] if rank == 0 else [6, 3]
        dist.all_to_all_single(torch.zeros(sum(out)), torch.ones(sum(put)), out, put)
        torch.cuda.synchronize()
        time.sleep(0.2)
        dist.all_reduce(torch.ones(5))

    message = c.message_of(call)
    dist.destroy_process_group()
    return message


def test_F12_splits_that_do_not_agree() -> None:
    for message in run_ranks(splits_differ, 2):
        assert "sends 6 elements" in message and "expects 5" in message, message


def refuses(rank: int, world: int) -> str:
    dda = dda_module()
    dist.all_reduce(torch.ones(5))
    x = torch.ones(4)

    def call() -> None:
        dda.all_reduce(x, out=torch.ones(5) if rank == 1 else x)
        torch.cuda.synchronize()
        time.sleep(0.2)
        dist.all_reduce(torch.ones(5))

    message = c.message_of(call)
    dist.destroy_process_group()
    return message


def test_F12_the_peers_of_a_rank_with_a_bad_argument_hear_of_it() -> None:
    messages = run_ranks(refuses, 2)
    assert "rank 1 refused it" in messages[0], messages


def survive(rank: int, world: int, n: int) -> str:
    dist.all_reduce(torch.ones(n))
    torch.cuda.synchronize()
    tell("ready")
    if rank == 1:
        listen()
    dist.all_reduce(torch.ones(n))
    began = time.monotonic()
    torch.cuda.synchronize()
    waited = time.monotonic() - began

    def calls() -> None:
        for _ in range(500):
            time.sleep(0.01)
            dist.all_reduce(torch.ones(5))

    message = c.message_of(calls)
    assert (torch.ones(3) + 1).sum().item() == 6.0
    dist.destroy_process_group()
    tell(waited)
    return message


@without_mps
@pytest.mark.parametrize("n", [8, 3_000_000])
def test_F24_a_killed_rank_ends_its_peers_kernels(n: int) -> None:
    with Ranks(survive, 3, n) as ranks:
        for r in range(3):
            assert ranks.hear(r) == "ready"
        time.sleep(0.5)
        ranks.signal(1, signal.SIGKILL)
        for r in (0, 2):
            assert ranks.hear(r) < 5
            outcome = ranks.outcome(r)
            assert outcome.ok, outcome.describe()
            assert "rank 1" in outcome.value, outcome.value


@without_mps
@pytest.mark.parametrize("n", [8, 3_000_000])
def test_F23_a_stopped_rank_runs_its_peers_into_the_timeout(n: int) -> None:
    with Ranks(survive, 2, n, group_timeout=3) as ranks:
        for r in range(2):
            assert ranks.hear(r) == "ready"
        ranks.signal(1, signal.SIGSTOP)
        assert 1 < ranks.hear(0) < 10
        outcome = ranks.outcome(0)
        assert outcome.ok, outcome.describe()
        assert "Timed out" in outcome.value and "rank 1" in outcome.value, outcome.value


def messages(rank: int, world: int) -> None:
    dda_module().warmup(device="cuda")
    following, previous = (rank + 1) % world, (rank - 1) % world
    for dtype in (torch.float32, torch.uint8, torch.bfloat16):
        for n in (0, 1, 7, 1000, 32_769, 300_001, 3_000_000):
            mine = values((n,), dtype, n, rank).cuda()
            want = values((n,), dtype, n, previous)
            # Large ones do not fit: every rank sends first, and none may wait for another's end.
            got = torch.empty(n, dtype=dtype)
            works = [dist.isend(mine, following), dist.irecv(got, previous)]
            for work in works:
                work.wait()
            assert_same_bits(got, want, f"isend, irecv of {n}")
            got = torch.zeros(2 * n, dtype=dtype)[::2]  # strided
            ops = [
                dist.P2POp(dist.irecv, got, previous),
                dist.P2POp(dist.isend, mine, following),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert_same_bits(got, want, f"batch of {n}")
    if rank == 0:
        for k in range(50):  # more than fit, before anybody receives
            dist.send(torch.full((1000 * k,), float(k)), 1)
    elif rank == 1:
        torch.cuda._sleep(10_000_000)
        for k in range(50):
            got = torch.empty(1000 * k)
            dist.recv(got, 0)
            assert torch.equal(got, torch.full((1000 * k,), float(k))), k
    x = torch.ones(5)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((5,), float(world)))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_messages(world: int) -> None:
    run_ranks(messages, world)


def messages_in_a_graph(rank: int, world: int) -> None:
    dda_module().warmup(device="cuda")
    step, wrong = torch.zeros(()), torch.zeros(())
    got = torch.zeros(50_000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1)
        works = [
            dist.isend(torch.full((50_000,), rank) + step, 1 - rank),
            dist.irecv(got, 1 - rank),
        ]
        for work in works:
            work.wait()
        wrong.add_((got != 1 - rank + step).any())
    for _ in range(1000):
        graph.replay()
    torch.cuda.synchronize()
    assert step.item() == 1000 and wrong.item() == 0, (step, wrong)


def test_messages_in_a_graph() -> None:
    run_ranks(messages_in_a_graph, 2)


def bad_messages(rank: int, world: int) -> str:
    x = torch.ones(10)
    assert "dda.warmup" in c.message_of(lambda: dist.send(x, (rank + 1) % world))
    dda_module().warmup(device="cuda")
    assert "source" in c.message_of(lambda: dist.recv(x))

    def calls() -> None:
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            dist.recv(torch.ones(11), 0)
        torch.cuda.synchronize()
        for _ in range(100):
            time.sleep(0.01)
            dist.all_reduce(torch.ones(5))

    message = c.message_of(calls)
    dist.destroy_process_group()
    return message


def test_messages_that_do_not_fit() -> None:
    for message in run_ranks(bad_messages, 3):
        assert "sent 40 bytes" in message and "expects 44" in message, message


def on_two_captured_streams(rank: int, world: int) -> None:
    """Two branches of one graph use the group; they follow each other as they were captured."""
    dda_module().warmup(device="cuda")
    x, y = torch.zeros(400_000), torch.zeros(400_000)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y.fill_(rank + 1.0)
            dist.all_reduce(y)
        x.fill_(rank)
        dist.all_reduce(x)
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(200):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, sum(range(world))))
    assert torch.equal(y, torch.full_like(y, sum_of(world)))


def test_two_branches_of_a_graph() -> None:
    run_ranks(on_two_captured_streams, 2)


def symmetric(rank: int, world: int) -> None:
    """Every way in which inputs and outputs may be symmetric, on all ranks or on some."""
    dda = dda_module()
    n = 1_500_000
    a, b = (dda.empty(n + 64, device="cuda") for _ in range(2))
    assert a.device.type == "cuda" and not a.any()
    plain = torch.zeros(n + 64)
    for step in range(2):
        for algorithm in ("auto", "flat", "tree"):
            for some in range(2):  # on all ranks; on all but rank 0
                x, y = (a, b) if rank >= some else (plain, torch.zeros(n + 64))
                for at, m in ((0, n), (16, n - 5), (3, n), (0, 300_001)):
                    given = torch.arange(m) % 1000 + float(rank + step)
                    want = (
                        (torch.arange(m) % 1000) * float(world) + sum(range(world)) + world * step
                    )
                    x[at : at + m] = given
                    y.zero_()
                    out = dda.all_reduce(x[at : at + m], out=y[at : at + m], algorithm=algorithm)
                    x[at : at + m] = -1.0  # nobody reads it any more
                    assert torch.equal(out, want), (algorithm, some, at, m)
                    assert y[at + m :].sum().item() == 0 and y[:at].sum().item() == 0
                    x[at : at + m] = given
                    dda.all_reduce(x[at : at + m], out=x[at : at + m], algorithm=algorithm)
                    assert torch.equal(x[at : at + m], want), ("in place", algorithm, some, at, m)
    part = n // world // 16 * 16
    for some in range(2):
        x = a if rank >= some else plain
        x[: part * world] = torch.arange(part * world) % 100 + float(rank)
        everybody = (torch.arange(part * world) % 100) * float(world) + sum(range(world))
        mine = everybody[rank * part : (rank + 1) * part]
        assert torch.equal(dda.reduce_scatter(x[: part * world]), mine)
        want = torch.cat([torch.arange(part) % 100 + float(r) for r in range(world)])
        assert torch.equal(dda.all_gather(x[:part]), want)
        for root in range(world):
            z = x[:part].clone()
            dist.reduce(z, root)
            assert rank != root or torch.equal(z, everybody[:part])
            x[:part] = torch.arange(part) % 100 + float(rank)
            dist.broadcast(x[:part], root)
            assert torch.equal(x[:part], torch.arange(part) % 100 + float(root)), (some, root)
            x[:part] = torch.arange(part) % 100 + float(rank)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_symmetric_tensors(world: int) -> None:
    run_ranks(symmetric, world, timeout=120)


def symmetric_in_graphs(rank: int, world: int) -> None:
    dda = dda_module()
    x = dda.empty(600_000, device="cuda")
    step, wrong = torch.zeros(()), torch.zeros(())

    def calls() -> None:
        step.add_(1)
        x.copy_(torch.full_like(x, rank) + step)
        dda.all_reduce(x, out=x)
        wrong.add_((x != sum(range(world)) + world * step).any())
        dist.broadcast(x, 0)
        wrong.add_((x != sum(range(world)) + world * step).any())

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    for i in range(500):
        if i % 100 == 20 * rank:
            torch.cuda._sleep(2_000_000)
        graph.replay()
    torch.cuda.synchronize()
    assert step.item() == 500 and wrong.item() == 0, (step, wrong)


def test_symmetric_tensors_in_graphs() -> None:
    run_ranks(symmetric_in_graphs, 3)


def symmetric_life(rank: int, world: int) -> str:
    dda = dda_module()
    for _ in range(300):  # more than there are places: what is freed is used again
        x = dda.empty(500_000, device="cuda")
        x.fill_(rank)
        dda.all_reduce(x, out=x)
        assert x[0].item() == sum(range(world))
    kept = [dda.empty(8, device="cuda") for _ in range(200)]
    free = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        dda.empty(8 << 20, device="cuda")
    assert free - torch.cuda.mem_get_info()[0] < 200 << 20
    message = c.message_of(lambda: kept.extend(dda.empty(8, device="cuda") for _ in range(100)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(1)
        assert "captured" in c.message_of(lambda: dda.empty(8, device="cuda"))
    dist.destroy_process_group()
    kept[0].fill_(3)  # the memory outlives the group
    torch.cuda.synchronize()
    return message


def test_symmetric_tensors_come_and_go() -> None:
    for message in run_ranks(symmetric_life, 2, timeout=120):
        assert "256" in message, message


def unlike_operators(rank: int, world: int) -> None:
    """torch.compile, cudagraphs and DLPack."""
    dda = dda_module()
    x = torch.full((64, 32), float(rank + 1))

    def model(x: torch.Tensor) -> torch.Tensor:
        return dda.all_reduce(x * 2) + 1

    want = torch.full((64, 32), sum_of(world) * 2 + 1)
    assert torch.equal(model(x), want)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(model, fullgraph=True, mode=mode)
        for _ in range(4):
            assert torch.equal(compiled(x), want), mode


def test_torch_compile_with_and_without_graphs() -> None:
    run_ranks(unlike_operators, 2, timeout=240)


def from_cupy(rank: int, world: int) -> None:
    cupy = pytest.importorskip("cupy")
    array = cupy.full((1000,), rank + 1, dtype=cupy.float32)
    out = cupy.zeros_like(array)
    cupy.cuda.get_current_stream().synchronize()
    dda_module().all_reduce(torch.from_dlpack(array), out=torch.from_dlpack(out))
    torch.cuda.synchronize()
    assert float(out.min()) == float(out.max()) == sum_of(world)


def test_arrays_of_cupy_without_a_copy() -> None:
    pytest.importorskip("cupy")
    run_ranks(from_cupy, 2)
