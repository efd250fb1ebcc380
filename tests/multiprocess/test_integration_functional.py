"""Functional collectives, eager and compiled; small integers, so that every sum is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from tests.multiprocess.harness import run_ranks

# One compiler process a rank; no cache from runs before.
COMPILE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}


def numbers(rank: int, shape: tuple[int, ...] = (6, 4)) -> torch.Tensor:
    """Float32 small integers that differ from rank to rank."""
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(rank)).float()


def everyone(world: int, shape: tuple[int, ...] = (6, 4)) -> torch.Tensor:
    """Float32 [world, *shape]."""
    return torch.stack([numbers(r, shape) for r in range(world)])


def all_reduce(rank: int, world: int) -> None:
    x, parts = numbers(rank), everyone(world)
    for op, expected in (
        ("sum", parts.sum(0)),
        ("avg", parts.sum(0) / world),
        ("max", parts.amax(0)),
        ("min", parts.amin(0)),
        ("product", parts.prod(0)),
    ):
        assert torch.equal(fc.all_reduce(x, op, dist.group.WORLD), expected), op
    assert torch.equal(x, parts[rank]), "the input changed"


def all_gather(rank: int, world: int) -> None:
    parts = everyone(world)
    for dim in (0, 1):
        got = fc.all_gather_tensor(numbers(rank), dim, dist.group.WORLD)
        assert torch.equal(got, torch.cat(list(parts), dim)), dim


def reduce_scatter(rank: int, world: int) -> None:
    shape = (2 * world, 3 * world)
    total = everyone(world, shape).sum(0)
    for dim in (0, 1):
        got = fc.reduce_scatter_tensor(numbers(rank, shape), "sum", dim, dist.group.WORLD)
        assert torch.equal(got, total.chunk(world, dim)[rank]), dim


def all_to_all(rank: int, world: int) -> None:
    even = fc.all_to_all_single(numbers(rank, (world, 2)), None, None, dist.group.WORLD)
    assert torch.equal(even, everyone(world, (world, 2))[:, rank])
    # Rank s sends s + d rows to rank d.
    sends = [[s + d for d in range(world)] for s in range(world)]
    inputs = [numbers(s, (sum(sends[s]), 2)) for s in range(world)]
    receives = [sends[s][rank] for s in range(world)]
    got = fc.all_to_all_single(inputs[rank], receives, sends[rank], dist.group.WORLD)
    expected = torch.cat([inputs[s].split(sends[s])[rank] for s in range(world)])
    assert torch.equal(got, expected)


def broadcast(rank: int, world: int) -> None:
    for root in range(world):
        assert torch.equal(fc.broadcast(numbers(rank), root, dist.group.WORLD), numbers(root))


def coalesced(rank: int, world: int) -> None:
    shapes = [(world, 3), (2 * world,), (world, 1, 5)]
    mine = [numbers(rank, shape) for shape in shapes]
    parts = [everyone(world, shape) for shape in shapes]
    for got, part in zip(
        fc.all_reduce_coalesced(mine, "sum", dist.group.WORLD), parts, strict=True
    ):
        assert torch.equal(got, part.sum(0))
    gathered = fc.all_gather_into_tensor_coalesced(mine, dist.group.WORLD)
    for got, part in zip(gathered, parts, strict=True):
        assert torch.equal(got, part.flatten(0, 1))
    scattered = fc.reduce_scatter_tensor_coalesced(mine, "sum", [0] * 3, dist.group.WORLD)
    for got, part in zip(scattered, parts, strict=True):
        assert torch.equal(got, part.sum(0).chunk(world)[rank])


def permute(rank: int, world: int) -> None:
    x = numbers(rank, (7,))  # torch takes no more dimensions here
    got = fc.permute_tensor(x, [(r + 1) % world for r in range(world)], dist.group.WORLD)
    assert torch.equal(got, numbers((rank - 1) % world, (7,)))


def autograd(rank: int, world: int) -> None:
    x = numbers(rank, (2, 3)).requires_grad_()
    weights = everyone(world, (2 * world, 3))
    y = fc.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    (y * weights[rank]).sum().backward()
    assert torch.equal(x.grad, weights.sum(0).chunk(world)[rank])

    z = numbers(rank, (2 * world, 3)).requires_grad_()
    part = fc.reduce_scatter_tensor_autograd(z, "sum", 0, dist.group.WORLD)
    (part * numbers(rank, (2, 3))).sum().backward()
    assert torch.equal(z.grad, everyone(world, (2, 3)).flatten(0, 1))

    z = numbers(rank, (world, 3)).requires_grad_()
    swapped = fc.all_to_all_single_autograd(z, None, None, dist.group.WORLD)
    (swapped * numbers(rank, (world, 3))).sum().backward()
    assert torch.equal(z.grad, everyone(world, (world, 3))[:, rank])


EAGER = [
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    broadcast,
    coalesced,
    permute,
    autograd,
]


@pytest.mark.parametrize("case", EAGER, ids=lambda case: case.__name__)
@pytest.mark.parametrize("world", [2, 3])
def test_functional(world: int, case: Callable[[int, int], None]) -> None:
    run_ranks(case, world)


# What is compiled: float32 [4, 2] in and out, with arithmetic on both sides of the collective.


def dist_all_reduce(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def dist_all_reduce_max(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    return y + 1


def dist_all_gather_into_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(2 * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(y, x * 2)
    return y + 1


def dist_reduce_scatter_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(x.shape[0] // 2, x.shape[1])
    dist.reduce_scatter_tensor(y, x * 2)
    return y + 1


def dist_all_to_all_single(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x * 2)
    return y + 1


def fc_all_reduce(x: torch.Tensor) -> torch.Tensor:
    return fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def fc_all_gather_tensor(x: torch.Tensor) -> torch.Tensor:
    return fc.all_gather_tensor(x * 2, 1, dist.group.WORLD) + 1


def fc_broadcast(x: torch.Tensor) -> torch.Tensor:
    return fc.broadcast(x * 2, 1, dist.group.WORLD) + 1


# What each gives rank r of two, from both ranks' inputs.
COMPILED: dict[Callable[[torch.Tensor], torch.Tensor], Callable[..., torch.Tensor]] = {
    dist_all_reduce: lambda parts, rank: parts.sum(0),
    dist_all_reduce_max: lambda parts, rank: parts.amax(0),
    dist_all_gather_into_tensor: lambda parts, rank: parts.flatten(0, 1),
    dist_reduce_scatter_tensor: lambda parts, rank: parts.sum(0).chunk(2)[rank],
    dist_all_to_all_single: lambda parts, rank: torch.cat([p.chunk(2)[rank] for p in parts]),
    fc_all_reduce: lambda parts, rank: parts.sum(0),
    fc_all_gather_tensor: lambda parts, rank: torch.cat(list(parts), 1),
    fc_broadcast: lambda parts, rank: parts[1],
}


def compiled(rank: int, world: int, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    fast = torch.compile(step, fullgraph=True)
    for shape in ((4, 2), (4, 2), (8, 2)):  # again, and with another shape
        x = numbers(rank, shape)
        expected = COMPILED[step](2 * everyone(world, shape), rank) + 1
        assert torch.equal(fast(x), expected), shape
        assert torch.equal(x, numbers(rank, shape)), "the input changed"


@pytest.mark.parametrize("step", COMPILED, ids=lambda step: step.__name__)
def test_compile_fullgraph(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    run_ranks(compiled, 2, step, timeout=180, env=COMPILE)
