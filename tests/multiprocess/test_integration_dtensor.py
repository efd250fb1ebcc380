"""DTensor, parallelize_module and DeviceMesh; small integers, so that every sum is exact."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.multiprocess.harness import run_ranks

SHAPES = [(6, 4), (5, 3), (1, 7), (3,)]  # even and uneven over 2 and 3 ranks, fewer rows than ranks
REDUCTIONS = {"sum": torch.sum, "avg": torch.mean, "max": torch.amax, "min": torch.amin}


def numbers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Float32 multiples of 6 (exact means over 2 and 3) of both signs."""
    generator = torch.Generator().manual_seed(seed)
    return 6.0 * torch.randint(-50, 50, shape, generator=generator)


def placements_of(shape: tuple[int, ...]) -> list[Placement]:
    return [Replicate(), *(Shard(dim) for dim in range(len(shape)))]


def redistribute(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    for shape in SHAPES:
        whole = numbers(shape, 0)
        for source, target in product(placements_of(shape), repeat=2):
            given = whole if rank == 0 else torch.empty(shape)  # rank 0's counts
            moved = distribute_tensor(given, mesh, [source]).redistribute(mesh, [target])
            assert moved.placements == (target,)
            assert torch.equal(moved.full_tensor(), whole), (shape, source, target)


@pytest.mark.parametrize("world", [2, 3])
def test_redistribute(world: int) -> None:
    run_ranks(redistribute, world)


def reduce(rank: int, world: int, reduction: str) -> None:
    mesh = init_device_mesh("cpu", (world,))
    for shape in SHAPES:
        parts = [numbers(shape, r) for r in range(world)]
        expected = REDUCTIONS[reduction](torch.stack(parts), dim=0)
        for target in placements_of(shape):
            partial = DTensor.from_local(parts[rank].clone(), mesh, [Partial(reduction)])
            moved = partial.redistribute(mesh, [target])
            assert torch.equal(moved.full_tensor(), expected), (shape, target)
            assert torch.equal(partial.to_local(), parts[rank]), "the source changed"


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_redistribute_partial(world: int, reduction: str) -> None:
    run_ranks(reduce, world, reduction)


def redistribute_2d(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    whole = numbers((6, 5), 0)
    choices = list(product([Replicate(), Shard(0), Shard(1)], repeat=2))
    for source, target in product(choices, repeat=2):
        moved = distribute_tensor(whole, mesh, source).redistribute(mesh, target)
        assert torch.equal(moved.full_tensor(), whole), (source, target)
    for target in choices:
        partial = DTensor.from_local(numbers((6, 5), rank), mesh, [Partial(), Partial()])
        expected = sum(numbers((6, 5), r) for r in range(world))
        assert torch.equal(partial.redistribute(mesh, target).full_tensor(), expected), target


def test_redistribute_on_a_2d_mesh() -> None:
    run_ranks(redistribute_2d, 4)


class Mlp(nn.Module):
    """Two layers; weights and biases are small integers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 6)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(numbers(tuple(parameter.shape), i) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.down(torch.relu(self.up(x)))


def assert_same_gradients(model: nn.Module, expected: nn.Module) -> None:
    for (name, got), want in zip(model.named_parameters(), expected.parameters(), strict=True):
        gradient = got.grad.full_tensor() if isinstance(got.grad, DTensor) else got.grad
        assert torch.equal(gradient, want.grad), name


def column_and_row(rank: int, world: int, sequence: bool) -> None:
    mesh = init_device_mesh("cpu", (world,))
    split = copy.deepcopy(whole := Mlp())
    if sequence:  # activations come and go sharded along the first dimension
        plan = {
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
    else:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(split, mesh, plan)
    assert split.up.weight.to_local().shape == (8 // world, 4)
    x = (numbers((4, 4), 9) / 6).requires_grad_()
    y = whole(x)
    y.sum().backward()
    rows = slice(rank * 4 // world, (rank + 1) * 4 // world) if sequence else slice(None)
    own_x = x.detach()[rows].clone().requires_grad_()
    own_y = split(own_x)
    assert torch.equal(own_y, y[rows])
    own_y.sum().backward()
    assert torch.equal(own_x.grad, x.grad[rows])
    assert_same_gradients(split, whole)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("sequence", [False, True], ids=["replicated", "sequence"])
def test_parallelize_module_column_and_row(world: int, sequence: bool) -> None:
    run_ranks(column_and_row, world, sequence)


def sequence_norm(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    norm = parallelize_module(nn.LayerNorm(4), mesh, SequenceParallel(sequence_dim=1))
    x = numbers((2, 6, 4), 3)
    y = norm(distribute_tensor(x, mesh, [Shard(1)]))
    assert torch.equal(y.full_tensor(), nn.LayerNorm(4)(x))


def test_sequence_parallel_norm() -> None:
    run_ranks(sequence_norm, 2)


def two_dimensions(rank: int, world: int) -> None:
    """Tensor parallel inside the rows of a mesh, fully_shard along its columns."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    split = copy.deepcopy(whole := Mlp())
    parallelize_module(split, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(split, mesh=mesh["dp"])
    inputs = [numbers((4, 4), 20 + r) / 6 for r in range(2)]
    output = split(inputs[mesh["dp"].get_local_rank()])
    assert torch.equal(output, whole(inputs[mesh["dp"].get_local_rank()]))
    output.sum().backward()
    for x in inputs:
        (whole(x).sum() / 2).backward()
    assert_same_gradients(split, whole)


def test_tensor_and_data_parallel_on_a_2d_mesh() -> None:
    run_ranks(two_dimensions, 4)


def mesh_1d(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
    assert (mesh.get_local_rank(), mesh.size()) == (rank, world)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mesh.get_group())
    assert x.item() == sum(range(world))


def test_mesh_1d() -> None:
    run_ranks(mesh_1d, 3)


def mesh_2d(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    row, column = divmod(rank, 2)
    assert mesh.get_coordinate() == (row, column) or mesh.get_coordinate() == [row, column]
    for name, members in (("row", [column, column + 2]), ("column", [2 * row, 2 * row + 1])):
        x = torch.tensor([2.0**rank])
        dist.all_reduce(x, group=mesh.get_group(name))
        assert x.item() == sum(2.0**member for member in members), name
    flat = mesh._flatten("flat")
    x = torch.tensor([2.0**rank])
    dist.all_reduce(x, group=flat.get_group())
    assert x.item() == 15


def test_mesh_2d() -> None:
    run_ranks(mesh_2d, 4)
