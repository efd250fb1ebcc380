"""send and recv: sizes beyond the ring, tags, any source, batches, and pairs that disagree."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.multiprocess import cases as c
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.reference import DTYPES, assert_same_bits, blank, place, values

BIG = 3_000_000  # bytes: more than any ring holds


@dataclass(frozen=True)
class Case:
    """A message from rank `source` to rank `source + hop`, modulo the number of ranks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    source: int = 0
    hop: int = 1
    layouts: tuple[str, ...] = ("plain",)
    seed: int = 0


def check(rank: int, world: int, case: Case) -> None:
    source = case.source % world
    to = (source + 1 + case.hop % (world - 1)) % world
    want = values(case.shape, case.dtype, case.seed, source)
    if rank == source:
        mine = place(want, case.layouts[0])
        dist.send(mine.view, to)
        mine.assert_untouched("the message")
    elif rank == to:
        mine = blank(case.shape, case.dtype, case.layouts[-1])
        assert dist.recv(mine.view, source) == source
        assert_same_bits(mine.view, want)
        mine.assert_guards()


@pytest.mark.parametrize("world", [2, 3])
def test_every_dtype_and_size(world: int) -> None:
    c.run_cases(
        check,
        world,
        [
            Case(d, (n,), source=n, hop=i, seed=i)
            for i, d in enumerate(DTYPES)
            for n in (*c.COUNTS, *c.edge_counts(d.itemsize)[::4])
        ]
        + [Case(torch.uint8, (BIG,), hop=0)],
    )


@pytest.mark.parametrize("world", [2, 4])
@given(
    lists=c.lists_of(
        st.builds(
            Case,
            st.sampled_from(DTYPES),
            c.SHAPES,
            st.integers(0, 3),
            st.integers(0, 3),
            c.LAYOUTS,
            c.SEEDS,
        )
    )
)
@c.few_lists
def test_any_messages_in_a_row(world: int, lists: list[Case]) -> None:
    c.run_cases(check, world, lists)


def test_F09_strided_tensors() -> None:
    c.run_cases(
        check,
        2,
        [
            Case(torch.float32, shape, layouts=layouts)
            for shape in ((5,), (4, 7), (2, 3, 5), (3000,))
            for layouts in c.ALL_LAYOUTS
        ],
    )


def around_the_ring(rank: int, world: int) -> None:
    """Everybody sends before anybody receives: big messages must not block each other."""
    to, source = (rank + 1) % world, (rank - 1) % world
    for n in (0, 1, 1000, BIG):
        outgoing = torch.full((n,), rank, dtype=torch.uint8)
        incoming = torch.empty(n, dtype=torch.uint8)
        work = dist.isend(outgoing, to)
        dist.recv(incoming, source)
        work.wait()
        assert torch.equal(incoming, torch.full((n,), source, dtype=torch.uint8))


@pytest.mark.parametrize("world", [2, 3, 8])
def test_everybody_sends_at_once(world: int) -> None:
    run_ranks(around_the_ring, world)


def blocking_sends(rank: int, world: int) -> None:
    for i in range(50):
        if rank == 0:
            dist.send(torch.tensor([i]), 1)
        else:
            got = torch.zeros(1, dtype=torch.int64)
            dist.recv(got, 0)
            assert got.item() == i, "messages of one pair and tag arrive in order"


def test_messages_of_a_pair_arrive_in_order() -> None:
    run_ranks(blocking_sends, 2)


def tags(rank: int, world: int) -> None:
    order = (3, 1, 2)
    if rank == 0:
        works = [dist.isend(torch.full((tag * 1000,), tag), 1, tag=tag) for tag in order]
        for work in works:
            work.wait()
    else:
        for tag in sorted(order):  # in another order than sent
            got = torch.empty(tag * 1000, dtype=torch.int64)
            dist.recv(got, 0, tag=tag)
            assert torch.equal(got, torch.full((tag * 1000,), tag))


def test_tags_pick_the_message() -> None:
    run_ranks(tags, 2)


def any_source(rank: int, world: int) -> list[int]:
    if rank != 0:
        for i in range(3):
            dist.send(torch.tensor([rank * 10 + i]), 0)
        return []
    got = []
    for _ in range(3 * (world - 1)):
        x = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(x)
        assert x.item() // 10 == source, "the source that recv returns sent this message"
        got.append(int(x.item()))
    return got


def test_recv_from_any_source() -> None:
    got = run_ranks(any_source, 4)[0]
    assert sorted(got) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    for rank in (1, 2, 3):
        mine = [x for x in got if x // 10 == rank]
        assert mine == sorted(mine), "messages of one source stay in order"


def batch(rank: int, world: int) -> None:
    for n in (1, 1000, BIG // world):
        incoming = [torch.empty(n, dtype=torch.uint8) for _ in range(world)]
        ops = []
        for peer in range(world):
            if peer != rank:
                mine = torch.full((n,), rank * world + peer, dtype=torch.uint8)
                ops.append(dist.P2POp(dist.isend, mine, peer))
                ops.append(dist.P2POp(dist.irecv, incoming[peer], peer))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for peer in range(world):
            if peer != rank:
                want = torch.full((n,), peer * world + rank, dtype=torch.uint8)
                assert torch.equal(incoming[peer], want)


def test_batch_isend_irecv() -> None:
    run_ranks(batch, 4)


def mixed_with_collectives(rank: int, world: int) -> None:
    x = torch.full((1000,), float(rank))
    works = []
    if rank == 0:
        works.append(dist.isend(torch.arange(500.0), 1))
    dist.all_reduce(x)
    if rank == 1:
        got = torch.empty(500)
        dist.all_reduce(torch.ones(1))
        dist.recv(got, 0)
        assert torch.equal(got, torch.arange(500.0))
    else:
        dist.all_reduce(torch.ones(1))
    for work in works:
        work.wait()


def test_messages_between_collectives() -> None:
    run_ranks(mixed_with_collectives, 3)


def disagree(rank: int, world: int, sent: tuple[int, str], got: tuple[int, str]) -> str:
    count, dtype = sent if rank == 0 else got
    x = torch.zeros(count, dtype=getattr(torch, dtype))
    if rank == 1:
        return c.message_of(lambda: dist.recv(x, 0))
    try:
        dist.send(x, 1)
    except RuntimeError as error:
        return str(error)
    return ""  # a small message may be on its way before the receiver looks at it


@pytest.mark.parametrize(
    ("sent", "got"),
    [((100, "float32"), (200, "float32")), ((100, "float32"), (100, "int32"))],
)
def test_F12_sender_and_receiver_disagree(sent: tuple[int, str], got: tuple[int, str]) -> None:
    message = run_ranks(disagree, 2, sent, got, timeout=20, group_timeout=10)[1]
    for count, dtype in (sent, got):
        assert str(count) in message and dtype in message, message


def to_itself(rank: int, world: int) -> None:
    assert c.message_of(lambda: dist.send(torch.ones(1), rank))
    assert c.message_of(lambda: dist.send(torch.ones(1), world))
    dist.barrier()


def test_wrong_peers_raise() -> None:
    run_ranks(to_itself, 2)


def objects(rank: int, world: int) -> object:
    box: list[object] = [{"a": 1}, "b" * 50_000] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(box, 1)
    else:
        dist.recv_object_list(box, 0)
    return box


def test_objects() -> None:
    assert run_ranks(objects, 2) == [[{"a": 1}, "b" * 50_000]] * 2


def receive_too_little(rank: int, world: int) -> str:
    """The sender of a large message that does not fit is not left with it."""
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(3_000_000), 1)
        message = ""
    else:
        message = c.message_of(lambda: dist.recv(torch.ones(10), 0))
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == world
    return message


def test_the_sender_of_a_message_that_does_not_fit_goes_on() -> None:
    message = run_ranks(receive_too_little, 2, timeout=20)[1]
    assert "3000000 elements" in message and "10 elements" in message


def receive_beside_another(rank: int, world: int) -> tuple[str, float]:
    """Rank 0 waits in one thread for a message that never comes, while another thread is busy."""
    dist.barrier()
    if rank == 1:
        time.sleep(4)
        return "", 0.0
    stop = threading.Event()
    x = torch.ones(3)

    def chat() -> None:
        peer = 2 - rank
        while (not stop.is_set() and rank == 0) or rank == 2:
            if rank == 0:
                dist.send(x, peer, tag=1)
                dist.recv(x, peer, tag=1)
            else:
                dist.recv(x, peer, tag=1)
                dist.send(x, peer, tag=1)

    if rank == 2:
        return c.message_of(chat), 0.0
    talk = threading.Thread(target=_quietly, args=(chat,))
    talk.start()
    begin = time.monotonic()
    message = c.message_of(lambda: dist.recv(torch.ones(3), 1))
    took = time.monotonic() - begin
    stop.set()
    talk.join(5)
    return message, took


def _quietly(call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):
        call()


def test_F25_a_message_that_never_comes_times_out_beside_busy_threads() -> None:
    message, took = run_ranks(receive_beside_another, 3, group_timeout=1, timeout=20)[0]
    assert "Timed out" in message and "rank 1" in message and took < 3, (message, took)


def receive_from_nobody(rank: int, world: int) -> str:
    dist.barrier()
    if rank != 0:
        return ""  # leaves
    return c.message_of(lambda: dist.recv(torch.ones(3)))


def test_F24_a_receive_from_any_rank_ends_when_all_have_left() -> None:
    assert "left" in run_ranks(receive_from_nobody, 3, timeout=20)[0]


def nobody_waits(rank: int, world: int, is_send: bool) -> tuple[str, float]:
    """Rank 0 issues a message that rank 1 never answers, and looks at it now and then."""
    dist.barrier()
    if rank == 1:
        time.sleep(5)
        return "", 0.0
    begin = time.monotonic()
    start = dist.isend if is_send else dist.irecv
    # Two: one whose handle is kept, one whose handle and tensor are dropped.
    work = start(torch.ones(BIG), 1)
    assert work is not None
    dropped = np.ones(BIG, dtype=np.float32)
    is_alive = weakref.ref(dropped)
    start(torch.from_numpy(dropped), 1)
    del dropped
    while not work.is_completed() and time.monotonic() < begin + 4:
        time.sleep(0.01)
    took = time.monotonic() - begin
    message = c.message_of(work.wait) if work.is_completed() else "it is outstanding"
    time.sleep(0.1)
    assert is_alive() is None, "the memory of the dropped message is held"
    return message, took


@pytest.mark.parametrize("is_send", [True, False], ids=["send", "recv"])
def test_F25_a_message_that_nobody_waits_for_times_out(is_send: bool) -> None:
    ranks = run_ranks(nobody_waits, 2, is_send, group_timeout=1, timeout=20)
    message, took = ranks[0]
    assert "Timed out after 1000 ms" in message and "rank 1 did not come" in message, message
    assert 0.9 < took < 2.5, took
