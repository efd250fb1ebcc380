"""dda's functions and ``torch.ops.dda``: schemas, gradients, wrong arguments."""

from __future__ import annotations

import importlib
import time
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


def refuse_a_gradient(rank: int, world: int) -> str:
    """Rank 0 asks for a gradient that there is not; its peers hear of it at once."""
    dda = importlib.import_module("dda")
    out, x = torch.empty(2), torch.ones(2 * world, requires_grad=True)
    message = message_of(lambda: dda.scatter(out, x if rank == 0 else None))
    y = torch.ones(3, requires_grad=rank == 0)
    second = message_of(lambda: dda.all_reduce(y, "max"))
    assert "gradient" in second
    assert torch.equal(dda.all_reduce(torch.ones(3)), torch.full((3,), float(world)))
    return message


def test_the_peers_of_a_rank_without_a_gradient_raise() -> None:
    for message in run_ranks(refuse_a_gradient, 3, timeout=20):
        assert "gradient" in message, message


def compiled(rank: int, world: int) -> None:
    dda = importlib.import_module("dda")
    x = torch.arange(6.0) + rank
    total = world * torch.arange(6.0) + sum(range(world))

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = dda.all_reduce(x * 1)
        return y, dda.all_gather(x + 0), dda.reduce_scatter(x), dda.all_to_all_single(x)

    whole = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, want in zip(whole(x), step(x), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(whole(x)[0], total)

    def with_barrier(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        dda.barrier()
        return x * 2

    broken = torch.compile(with_barrier, backend="aot_eager")
    broken(x)
    if rank == 1:
        time.sleep(0.5)
    begin = time.monotonic()
    assert torch.equal(broken(x), 2 * x + 2)
    assert rank == 1 or time.monotonic() - begin > 0.3, "compiled code does wait"


def test_torch_compile() -> None:
    run_ranks(compiled, 2, timeout=120)


def side_groups_first(rank: int, world: int) -> None:
    """Dda's functions on groups of gloo leave torch's names of later groups alone."""
    dda = importlib.import_module("dda")
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank < 2:
        x = torch.full((3,), float(rank))
        assert dda.all_reduce(x, group=pairs[0])[0] == 1
    for local in (False, True):
        middle = None
        if rank in (1, 2) or not local:
            middle = dist.new_group([1, 2], use_local_synchronization=local)
        if rank in (1, 2):
            x = torch.full((3,), float(rank))
            dist.all_reduce(x, group=middle)
            assert x[0] == 3
            assert dda.all_reduce(torch.ones(1), group=middle)[0] == 2
            assert dda.empty(3, group=middle).sum() == 0
    dist.barrier()


def test_side_groups_do_not_count() -> None:
    run_ranks(side_groups_first, 4, backend="gloo", timeout=40, group_timeout=20)


def in_detail(rank: int, world: int) -> None:
    dda = importlib.import_module("dda")
    assert torch.equal(dda.all_reduce(torch.ones(3)), torch.full((3,), float(world)))
    assert dda.empty(4).numel() == 4
    assert dda.explain("all_reduce", 64).algorithm == "flat"
    group = dist.group.WORLD
    assert "Wrapper" in type(group._get_backend(torch.device("cpu"))).__name__
    name = group.group_name
    x = torch.arange(3.0)
    assert torch.equal(torch.ops.dda.all_reduce(x, "sum", name), world * x)
    assert torch.equal(torch.ops.dda.all_gather(x, name), x.repeat(world))
    torch.ops.dda.barrier(name)
    dist.all_reduce(x)
    assert torch.equal(x, world * torch.arange(3.0))


def test_functions_with_the_debug_level_detail() -> None:
    run_ranks(in_detail, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, timeout=40)


def options_of(rank: int, world: int) -> str:
    from datetime import timedelta

    dda = importlib.import_module("dda")
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group(
        "dda",
        store=dist.PrefixStore("options", store),
        rank=rank,
        world_size=world,
        pg_options=dda.Options(timeout=timedelta(seconds=1)),
    )
    if rank == 0:
        return message_of(dist.barrier)
    time.sleep(2.5)
    return ""


def test_a_timeout_of_the_options_counts() -> None:
    assert "1000 ms" in run_ranks(options_of, 2, timeout=30)[0]


def unequal_options(rank: int, world: int) -> str:
    from datetime import timedelta

    dda = importlib.import_module("dda")
    store = dist.PrefixStore("unequal", dist.distributed_c10d._get_default_store())
    options = dda.Options(timeout=timedelta(seconds=10), slot_bytes=4096 * (1 + rank))
    return message_of(lambda: dda._C.create_backend(store, rank, world, options))


def test_options_that_differ_are_named() -> None:
    for message in run_ranks(unequal_options, 2, timeout=30):
        assert "slot_bytes=4096" in message and "slot_bytes=8192" in message, message
