"""dda's functions and ``torch.ops.dda``: schemas, gradients, wrong arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.cases import message_of
from tests.multiprocess.harness import run_ranks

WORLD = 2


def calls() -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """One call of each operator: the overload, its arguments and keywords."""
    ops = torch.ops.dda
    group = dist.group.WORLD.group_name
    rows, part = torch.ones(6, 5), torch.ones(3, 5)
    return [
        (ops.all_reduce.default, (rows, "sum", group), {}),
        (ops.all_reduce.default, (rows, "max", group, "tree"), {}),
        (ops.all_reduce.out, (rows, "sum", group), {"out": torch.empty(6, 5)}),
        (ops.all_reduce_.default, (rows, "sum", group), {}),
        (ops.reduce_.default, (rows, 1, "sum", group), {}),
        (ops.broadcast_.default, (rows, 1, group), {}),
        (ops.all_gather.default, (part, group), {}),
        (ops.all_gather.out, (part, group), {"out": torch.empty(6, 5)}),
        (ops.reduce_scatter.default, (rows, "sum", group), {}),
        (ops.reduce_scatter.out, (rows, "sum", group), {"out": torch.empty(3, 5)}),
        (ops.scatter_.default, (part, rows, 0, group), {}),
        (ops.all_to_all_single.default, (rows, None, None, group), {}),
        (ops.all_to_all_single.default, (rows, [3, 3], [3, 3], group), {}),
        (ops.all_to_all_single.out, (rows, None, None, group), {"out": torch.empty(6, 5)}),
    ]


def check_operators(rank: int, world: int) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for op, args, kwargs in calls():
        torch.library.opcheck(op, args, kwargs, test_utils=tests)
    # gather's result has no rows but on the root, which its fake kernel does not know in a trace of
    # another rank.
    torch.library.opcheck(
        torch.ops.dda.gather.default,
        (torch.ones(3, 5), 0, dist.group.WORLD.group_name),
        test_utils=("test_schema", "test_autograd_registration"),
    )


def test_opcheck() -> None:
    run_ranks(check_operators, WORLD, timeout=120)


def functions(rank: int, world: int) -> None:
    dda = importlib.import_module("dda")
    base = torch.arange(6.0).reshape(6, 1)
    total = world * base + sum(range(world))
    x = base + rank
    assert torch.equal(dda.all_reduce(x), total)
    assert torch.equal(dda.all_reduce(x, "max"), base + world - 1)
    out = torch.empty(6, 1)
    assert dda.all_reduce(x, out=out) is out and torch.equal(out, total)
    y = x.clone()
    assert dda.all_reduce(y, out=y) is y and torch.equal(y, total)

    y = x.clone()
    dda.reduce(y, root=1)
    assert torch.equal(y, total if rank == 1 else x)
    y = x.clone()
    assert torch.equal(dda.broadcast(y, root=1), base + 1)

    assert torch.equal(dda.all_gather(x), torch.cat([base + r for r in range(world)]))
    n = 6 // world
    assert torch.equal(dda.reduce_scatter(x), total[rank * n : (rank + 1) * n])
    gathered = dda.gather(x, root=1)
    want = torch.cat([base + r for r in range(world)]) if rank == 1 else torch.empty(0, 1)
    assert torch.equal(gathered, want)
    part = torch.empty(n, 1)
    dda.scatter(part, x if rank == 0 else None)
    assert torch.equal(part, base[rank * n : (rank + 1) * n])

    got = dda.all_to_all_single(x)
    assert torch.equal(got, torch.cat([base[rank * n : (rank + 1) * n] + r for r in range(world)]))
    # Rank r sends r + p rows to rank p.
    sends, comes = [rank + p for p in range(world)], [p + rank for p in range(world)]
    got = dda.all_to_all_single(torch.full((sum(sends), 2), float(rank)), comes, sends)
    want = torch.arange(float(world)).repeat_interleave(torch.tensor(comes))
    assert torch.equal(got[:, 0], want) and got.shape == (sum(comes), 2)
    dda.barrier()
    dda.warmup()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_functions(world: int) -> None:
    if world == 1:
        run_ranks(one_rank, 1)
    else:
        run_ranks(functions, world)


def one_rank(rank: int, world: int) -> None:
    dda = importlib.import_module("dda")
    x = torch.arange(6.0).reshape(6, 1)
    for give in (
        dda.all_reduce, dda.all_gather, dda.reduce_scatter, dda.gather, dda.all_to_all_single,
    ):  # fmt: skip
        assert torch.equal(give(x), x), give
        assert give(x) is not x


def gradients(rank: int, world: int) -> None:
    """The gradient of a collective is the collective that goes the other way."""
    dda = importlib.import_module("dda")
    weights = torch.arange(6.0) + 10 * rank

    def grad(call: Callable[[torch.Tensor], torch.Tensor], w: torch.Tensor) -> torch.Tensor:
        x = torch.ones(6, requires_grad=True)
        (call(x) * w).sum().backward()
        return x.grad

    base = torch.arange(6.0)
    assert torch.equal(grad(dda.all_reduce, weights), 2 * base + 10)
    wide = torch.arange(12.0) + 10 * rank
    assert torch.equal(grad(dda.all_gather, wide), 2 * (base + 6 * rank) + 10)
    narrow = torch.arange(3.0) + 10 * rank
    want = torch.cat([torch.arange(3.0), torch.arange(3.0) + 10])
    assert torch.equal(grad(dda.reduce_scatter, narrow), want)
    a, b = torch.arange(3.0), torch.arange(3.0) + 3
    mine = a if rank == 0 else b
    assert torch.equal(grad(dda.all_to_all_single, weights), torch.cat([mine, mine + 10]))


def test_gradients() -> None:
    run_ranks(gradients, 2)


def wrong_arguments(rank: int, world: int) -> None:
    dda = importlib.import_module("dda")
    x = torch.ones(5, 2)
    wrong: dict[str, Callable[[], object]] = {
        "plus": lambda: dda.all_reduce(x, "plus"),
        "ring": lambda: dda.all_reduce(x, algorithm="ring"),
        "[4, 2]": lambda: dda.all_reduce(x, out=torch.empty(4, 2)),
        "dtype": lambda: dda.all_reduce(x, out=torch.empty(5, 2).double()),
        "root": lambda: dda.broadcast(x, root=world),
        "reduce_scatter": lambda: dda.reduce_scatter(x),  # 5 rows among 2 ranks
        "split": lambda: dda.all_to_all_single(x, [5, 1], [2, 2]),
    }
    for word, call in wrong.items():
        message = message_of(call)
        assert word in message, (word, message)
        assert torch.equal(x, torch.ones(5, 2))
    # Each rank has refused as many calls as the other, and the group goes on.
    assert torch.equal(dda.all_reduce(x), 2 * x)
    for group in ("no such group", dist.GroupMember.NON_GROUP_MEMBER):
        message = message_of(lambda: dda.all_reduce(x, group=group))  # noqa: B023
        assert "ProcessGroup" in message and repr(group) in message


def test_wrong_arguments_raise_and_write_nothing() -> None:
    run_ranks(wrong_arguments, 2, timeout=30)
