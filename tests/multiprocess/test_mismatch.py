"""F12: ranks that call different things all raise, name both sides, write nothing, and go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess import cases as c
from tests.multiprocess.harness import run_ranks

N = 60  # elements of most calls; divisible by every world size used here


@dataclass
class Sample:
    """A call, what it would write, and the words by which a message must describe it."""

    call: Callable[[], object]
    outputs: list[torch.Tensor] = field(default_factory=list)
    words: tuple[str, ...] = ()


def samples(rank: int, world: int) -> dict[str, Sample]:
    """Calls of which no two agree; fresh tensors each time."""

    def tensor(n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((n,), rank + 1).to(dtype)

    def all_reduce(x: torch.Tensor, *words: str, **options: object) -> Sample:
        return Sample(lambda: dist.all_reduce(x, **options), [x], ("all_reduce", *words))

    def rooted(name: str, root: int) -> Sample:
        x = tensor()
        call = getattr(dist, name)
        return Sample(lambda: call(x, root), [x], (name, f"root {root}", str(N), "float32"))

    def uneven(n: int) -> Sample:
        splits = [N - 1 if p == (rank + n) % world else 0 for p in range(world)]
        got = [N - 1 if rank == (r + n) % world else 0 for r in range(world)]
        x, out = tensor(N - 1), torch.zeros(N - 1)
        return Sample(
            lambda: dist.all_to_all_single(out, x, got, splits), [out], ("all_to_all", "float32")
        )

    gathered, part, exchanged = torch.zeros(N * world), torch.zeros(N), torch.zeros(N)
    parts = [torch.zeros(N) for _ in range(world)]
    return {
        "sum": all_reduce(tensor(), str(N), "float32", "sum"),
        "longer": all_reduce(tensor(2 * N), str(2 * N), "float32", "sum"),
        "bf16": all_reduce(tensor(2 * N, torch.bfloat16), str(2 * N), "bfloat16"),
        "int32": all_reduce(tensor(N, torch.int32), str(N), "int32"),
        "max": all_reduce(tensor(), "max", op=dist.ReduceOp.MAX),
        "empty": all_reduce(tensor(0), "0 elements"),
        "huge": all_reduce(tensor(1_000_000), "1000000 elements"),
        "reduce 0": rooted("reduce", 0),
        "reduce 1": rooted("reduce", 1),
        "broadcast 0": rooted("broadcast", 0),
        "broadcast 1": rooted("broadcast", 1),
        "all_gather": Sample(
            lambda: dist.all_gather_into_tensor(gathered, tensor()), [gathered], ("all_gather",)
        ),
        "reduce_scatter": Sample(
            lambda: dist.reduce_scatter_tensor(part, tensor(N * world)), [part], ("reduce_scatter",)
        ),
        "gather": Sample(
            lambda: dist.gather(tensor(), parts if rank == 0 else None, 0), parts, ("gather",)
        ),
        "scatter": Sample(
            lambda: dist.scatter(part, [tensor()] * world if rank == 0 else None, 0),
            [part],
            ("scatter",),
        ),
        "all_to_all": Sample(
            lambda: dist.all_to_all_single(exchanged, tensor()), [exchanged], ("all_to_all",)
        ),
        "uneven": uneven(1),
        "barrier": Sample(lambda: dist.barrier(), [], ("barrier",)),
    }


def mutate(rank: int, world: int, odd: int) -> None:
    for usual, different in permutations(samples(rank, world), 2):
        made = samples(rank, world)
        mine = made[different if rank == odd else usual]
        before = [x.clone() for x in mine.outputs]
        what = f"{different} on rank {odd}, {usual} elsewhere"
        try:
            message = c.message_of(mine.call)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
        if {usual, different} != {"all_to_all", "uneven"}:
            for word in (*made[usual].words, *made[different].words):
                assert word in message, f"{what}: '{word}' is not in '{message}'"
        assert f"rank {odd}" in message or rank == odd, f"{what}: {message}"
        for x, old in zip(mine.outputs, before, strict=True):
            assert torch.equal(x, old), f"{what}: an output was written"
        check_usable(rank, world)


def check_usable(rank: int, world: int) -> None:
    x = torch.full((5,), rank + 1.0)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((5,), world * (world + 1) / 2)), x


@pytest.mark.parametrize(("world", "odd"), [(2, 0), (2, 1), (3, 2)])
def test_F12_any_two_calls_that_differ_raise_on_every_rank(world: int, odd: int) -> None:
    run_ranks(mutate, world, odd, timeout=60, group_timeout=20)


def asynchronous(rank: int, world: int) -> str:
    x = torch.ones(10 + rank % 2)
    good = [torch.ones(7), torch.ones(7)]
    works = [
        dist.all_reduce(good[0], async_op=True),
        dist.all_reduce(x, async_op=True),
        dist.all_reduce(good[1], async_op=True),
    ]
    works[0].wait()
    message = c.message_of(works[1].wait)
    works[2].wait()
    assert torch.equal(x, torch.ones(10 + rank % 2))
    assert all(torch.equal(g, torch.full((7,), float(world))) for g in good)
    return message


def test_F12_asynchronous_calls_raise_at_wait_and_their_neighbours_are_right() -> None:
    for message in run_ranks(asynchronous, 3, group_timeout=20):
        assert "10 elements" in message and "11 elements" in message


def trailing_shape(rank: int, world: int) -> str:
    rows, out = torch.ones(world * 2, 3 + rank % 2), torch.zeros(world * 2, 3 + rank % 2)
    message = c.message_of(lambda: dist.all_to_all_single(out, rows))
    assert torch.equal(out, torch.zeros_like(out))
    check_usable(rank, world)
    return message


def test_F12_all_to_all_rows_of_different_length() -> None:
    for message in run_ranks(trailing_shape, 2, group_timeout=20):
        assert "6" in message and "8" in message and "rank" in message


def own_error(rank: int, world: int) -> list[str]:
    """One rank's own arguments are wrong: its peers must not wait for it."""
    messages = []
    for call, wrong in (
        (
            lambda: dist.all_gather([torch.zeros(2) for _ in range(world)], torch.ones(2)),
            lambda: dist.all_gather([torch.zeros(2)], torch.ones(2)),
        ),
        (
            lambda: dist.all_reduce(torch.ones(4).bool()),
            lambda: dist.all_reduce(torch.ones(4).bool(), dist.ReduceOp.AVG),
        ),
        (
            lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2 * world)),
            lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(3)),
        ),
    ):
        messages.append(c.message_of(wrong if rank == 1 else call))
        check_usable(rank, world)
    return messages


def test_F12_the_peers_of_a_rank_with_a_bad_argument_raise_and_quote_it() -> None:
    results = run_ranks(own_error, 3, timeout=30, group_timeout=20)
    for own, *others in zip(results[1], results[0], results[2], strict=True):
        for message in others:
            assert "rank 1" in message and own.splitlines()[0][:40] in message, (own, message)


def different_order(rank: int, world: int) -> str:
    x, y = torch.ones(4), torch.ones(8)
    order = [x, y] if rank == 0 else [y, x]
    message = c.message_of(lambda: dist.all_reduce(order[0]))
    c.message_of(lambda: dist.all_reduce(order[1]))
    check_usable(rank, world)
    return message


def test_F12_ranks_that_call_in_another_order() -> None:
    for message in run_ranks(different_order, 2, group_timeout=20):
        assert "4 elements" in message and "8 elements" in message


def detail(rank: int, world: int) -> str:
    dist.barrier()
    pair = dist.new_group([0, 1])
    for i in range(20):
        x = torch.full((i + 1,), float(rank))
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((i + 1,), 6.0))
        if rank < 2 and i % 3 == 0:
            dist.all_reduce(torch.ones(i + 1), group=pair)
        outs = [torch.zeros(2) for _ in range(world)]
        dist.all_gather(outs, torch.full((2,), float(rank)))
        dist.broadcast(x, i % world)
        dist.barrier()
    return c.message_of(lambda: dist.all_reduce(torch.ones(3 + (rank == 2))))


def test_F20_detail_debugging_has_no_false_alarm_and_names_both_sides() -> None:
    for message in run_ranks(
        detail, 4, group_timeout=20, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    ):
        assert "3" in message and "4" in message
