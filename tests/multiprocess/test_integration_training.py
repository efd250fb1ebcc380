"""Data parallel training and pipelines: torch's own wrappers take the steps of a single process.

The numbers are small integers in float64 and the learning rate is a power of two, so that every sum
is exact whatever its order, and results are compared bit by bit.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.multiprocess.harness import run_ranks

STEPS = 2
ROWS = 4  # of each rank's batch


def make_model() -> nn.Sequential:
    """Two layers of odd sizes, so that shards are uneven, and a parameter of one element."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.PReLU(init=0.25)).double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            for parameter in layer.parameters():
                parameter.copy_(torch.randint(-2, 3, parameter.shape))
    return model


def batch(step: int, rank: int) -> torch.Tensor:
    """Float64 [ROWS, 6]: small integers that differ from rank to rank."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-2, 3, (ROWS, 6), generator=generator).double()


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """A sum, so that the gradient is exact."""
    return (output * torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)).sum()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=2.0**-6)


def train_alone(world: int) -> nn.Module:
    """What a single process makes of the mean of all ranks' losses."""
    model = make_model()
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(world):
            (loss_of(model(batch(step, rank))) / world).backward()
        optimizer.step()
    return model


def train(model: nn.Module, rank: int) -> None:
    """Takes STEPS steps with this rank's batches; the wrapper takes the mean of the gradients."""
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model(batch(step, rank))).backward()
        optimizer.step()


def assert_same_parameters(model: nn.Module, expected: nn.Module) -> None:
    for (name, got), want in zip(model.named_parameters(), expected.parameters(), strict=True):
        whole = got.full_tensor() if isinstance(got, DTensor) else got
        assert torch.equal(whole, want), f"{name}: {whole} is not {want}"
    assert not torch.equal(next(expected.parameters()), next(make_model().parameters()))


def ddp(rank: int, world: int, options: dict[str, bool]) -> None:
    model = make_model()
    if rank != 0:  # the constructor broadcasts rank 0's
        nn.init.constant_(model[0].weight, float("nan"))
    wrapped = DistributedDataParallel(model, **options)
    train(wrapped, rank)
    assert_same_parameters(wrapped.module, train_alone(world))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_ddp(world: int, options: dict[str, bool]) -> None:
    run_ranks(ddp, world, options)


def ddp_no_sync(rank: int, world: int) -> None:
    wrapped = DistributedDataParallel(make_model())
    with wrapped.no_sync():
        loss_of(wrapped(batch(0, rank))).backward()
    loss_of(wrapped(batch(1, rank))).backward()
    expected = make_model()
    for step in range(2):
        for r in range(world):
            (loss_of(expected(batch(step, r))) / world).backward()
    for got, want in zip(wrapped.parameters(), expected.parameters(), strict=True):
        assert torch.equal(got.grad, want.grad)


def test_ddp_accumulates_without_sync() -> None:
    run_ranks(ddp_no_sync, 2)


def fsdp2(rank: int, world: int, mesh_shape: tuple[int, ...]) -> None:
    mesh = init_device_mesh(
        "cpu", mesh_shape, mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :]
    )
    model = make_model()
    output = copy.deepcopy(model)(batch(0, rank))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    with torch.no_grad():
        assert torch.equal(model(batch(0, rank)), output)
    model.reshard()  # the root keeps its whole parameters after a forward pass
    train(model, rank)
    assert_same_parameters(model, train_alone(world))


@pytest.mark.parametrize("mesh_shape", [(2,), (4,), (2, 2)], ids=str)
def test_fully_shard(mesh_shape: tuple[int, ...]) -> None:
    run_ranks(fsdp2, torch.Size(mesh_shape).numel(), mesh_shape)


def fsdp1(rank: int, world: int, strategy: ShardingStrategy) -> None:
    warnings.simplefilter("ignore", FutureWarning)
    wrapped = FullyShardedDataParallel(
        make_model(), device_id=torch.device("cpu"), sharding_strategy=strategy
    )
    train(wrapped, rank)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        assert_same_parameters(wrapped.module, train_alone(world))


@pytest.mark.parametrize(
    "strategy", [ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD], ids=lambda s: s.name
)
def test_fsdp1(strategy: ShardingStrategy) -> None:
    run_ranks(fsdp1, 2, strategy)


def gpipe(rank: int, world: int) -> None:
    model = make_model()
    whole = make_model()
    x = torch.cat([batch(0, r) for r in range(2)])
    parts = [model[:2], model[2:]]
    stage = PipelineStage(parts[rank], rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, n_microbatches=4, loss_fn=lambda y, _: loss_of(y), scale_grads=False
    )
    losses: list[torch.Tensor] = []
    target = torch.zeros(len(x), 3)
    output = schedule.step(x) if rank == 0 else schedule.step(target=target, losses=losses)
    expected = whole(x)
    loss_of(expected).backward()
    if rank == 1:
        assert torch.equal(output, expected)
        assert sum(losses) == loss_of(expected)
    wanted = [whole[:2], whole[2:]][rank].parameters()
    for got, want in zip(parts[rank].parameters(), wanted, strict=True):
        assert torch.equal(got.grad, want.grad)


def test_pipeline_gpipe() -> None:
    run_ranks(gpipe, 2)


def unused(rank: int, world: int) -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[dist.get_rank()](x)

    wrapped = DistributedDataParallel(Choosing(), find_unused_parameters=True)
    wrapped(torch.ones(1, 2)).sum().backward()
    for layer in model:
        assert torch.equal(layer.weight.grad, torch.full((2, 2), 0.5))


def test_ddp_with_parameters_that_one_rank_does_not_use() -> None:
    run_ranks(unused, 2)
