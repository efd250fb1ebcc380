"""dda's own functions: the collectives, symmetric tensors, and questions to the engine.

`group` is a ``ProcessGroup`` or None for the default one (see dda.group), `root` a rank *of the
group*, `op` one of "sum", "avg", "product", "min", "max", "band", "bor", "bxor". Tensors are dense
tensors of any strides, on the CPU or on a GPU. A call returns when this rank's part of it is done,
on GPUs when it is enqueued on the current stream; calls of one group must come in the same order on
all its ranks. Each call raises RuntimeError if this rank's own
arguments are wrong, and ``dda.Error`` or one of its subclasses if the call fails.

torch.compile traces all that take tensors, and gradients flow through `all_reduce`, `all_gather`,
`reduce_scatter` and `all_to_all_single`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from dda._load import extension
from dda.group import any_backend_of, backend_of, name_of

extension()  # registers the operators
_ops = torch.ops.dda
_all_reduce = _ops.all_reduce.default
_all_reduce_out = _ops.all_reduce.out
_all_reduce_in_place = _ops.all_reduce_.default


class Explanation(NamedTuple):
    """How a call of some size is made, and why."""

    algorithm: str
    reason: str
    blocks: int
    chunk_bytes: int


def all_reduce(
    x: Tensor,
    op: str = "sum",
    group: ProcessGroup | None = None,
    out: Tensor | None = None,
    algorithm: str = "auto",
) -> Tensor:
    """Reduces `x` over all ranks; every rank gets the result, with the same bits.

    Args:
        x: any shape, the same on every rank.
        op: the reduction.
        group: the ranks.
        out: where to write, of the shape and dtype of `x`; `x` itself for in place. None for a new
            tensor.
        algorithm: "auto", "flat" or "tree".

    Returns:
        `out`, or the new tensor.
    """
    if out is None:
        return _all_reduce(x, op, name_of(group, x.device.type), algorithm)
    if out is x:
        _all_reduce_in_place(x, op, name_of(group, x.device.type), algorithm)
    else:
        _all_reduce_out(x, op, name_of(group, x.device.type), algorithm, out=out)
    return out


def reduce(x: Tensor, root: int = 0, op: str = "sum", group: ProcessGroup | None = None) -> Tensor:
    """Reduces `x` over all ranks, in place on the root; elsewhere `x` keeps its values."""
    _ops.reduce_(x, root, op, name_of(group, x.device.type))
    return x


def broadcast(x: Tensor, root: int = 0, group: ProcessGroup | None = None) -> Tensor:
    """Overwrites `x` on every rank with the root's `x`, and returns it."""
    _ops.broadcast_(x, root, name_of(group, x.device.type))
    return x


def all_gather(x: Tensor, group: ProcessGroup | None = None, out: Tensor | None = None) -> Tensor:
    """Joins every rank's `x` along the first dimension, in the order of ranks.

    Args:
        x: shape (n, ...), the same on every rank.
        group: the ranks.
        out: where to write, of size * n rows; `x` may be this rank's part of it.

    Returns:
        A tensor of shape (size * n, ...).
    """
    if out is None:
        return _ops.all_gather(x, name_of(group, x.device.type))
    _ops.all_gather(x, name_of(group, x.device.type), out=out)
    return out


def reduce_scatter(
    x: Tensor, op: str = "sum", group: ProcessGroup | None = None, out: Tensor | None = None
) -> Tensor:
    """Reduces `x` over all ranks and gives each rank its part of the first dimension.

    Args:
        x: shape (size * n, ...), the same on every rank.
        op: the reduction.
        group: the ranks.
        out: where to write, of n rows; it may be this rank's part of `x`.

    Returns:
        A tensor of shape (n, ...).
    """
    if out is None:
        return _ops.reduce_scatter(x, op, name_of(group, x.device.type))
    _ops.reduce_scatter(x, op, name_of(group, x.device.type), out=out)
    return out


def gather(x: Tensor, root: int = 0, group: ProcessGroup | None = None) -> Tensor:
    """Joins every rank's `x` on the root.

    Returns:
        On the root a tensor of shape (size * n, ...) for `x` of shape (n, ...); elsewhere one
        without rows.
    """
    return _ops.gather(x, root, name_of(group, x.device.type))


def scatter(
    out: Tensor, x: Tensor | None = None, root: int = 0, group: ProcessGroup | None = None
) -> Tensor:
    """Writes to `out`, of shape (n, ...), this rank's part of the root's `x`.

    Args:
        out: where to write.
        x: on the root, shape (size * n, ...); elsewhere ignored.
        root: the rank that has `x`.
        group: the ranks.
    """
    _ops.scatter_(out, x, root, name_of(group, out.device.type))
    return out


def all_to_all_single(
    x: Tensor,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sends part r of `x` to rank r and joins what comes, in the order of ranks.

    Args:
        x: shape (n, ...).
        output_splits: how many rows come from each rank; None for equal parts.
        input_splits: how many rows go to each rank; None for equal parts.
        group: the ranks.
        out: where to write, of sum(output_splits) rows.

    Returns:
        A tensor of shape (sum(output_splits), ...).
    """
    if out is None:
        return _ops.all_to_all_single(x, output_splits, input_splits, name_of(group, x.device.type))
    _ops.all_to_all_single(x, output_splits, input_splits, name_of(group, x.device.type), out=out)
    return out


def barrier(group: ProcessGroup | None = None) -> None:
    """Returns when every rank has called it. torch.compile breaks its graph here."""
    if torch.compiler.is_compiling():
        # An operator without tensors runs while it is traced, and is then missing from the graph.
        raise RuntimeError("dda.barrier cannot be part of a graph")
    _ops.barrier(name_of(group))


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: ProcessGroup | None = None,
    device: str | torch.device = "cpu",
) -> Tensor:
    """Makes a symmetric tensor: one that the peers address directly, so calls copy less.

    Collective over the group, with the same arguments on every rank. On a GPU it waits for all that
    was enqueued, and cannot be captured into a graph.

    Args:
        size: the shape, as in torch.empty.
        dtype: torch's default dtype if None.
        group: the ranks.
        device: "cpu", or this rank's GPU ("cuda" is the current one).

    Returns:
        A tensor on that device, zeroed. Its memory is freed some time after the last tensor that
        uses it has gone on every rank. A group has up to 256 of them on GPUs at a time.

    Raises:
        dda.Error: there is no room on some rank, or the ranks want different sizes.
    """
    given: Any = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    shape = torch.Size(given)
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    where = _with_index(device)
    memory = backend_of(group, where.type).allocate(shape.numel() * dtype.itemsize, str(where))
    return memory.view(dtype).view(shape)


def _with_index(device: str | torch.device) -> torch.device:
    """Returns the device; of "cuda" the current one."""
    here = torch.device(device)
    if here.type != "cuda" or here.index is not None:
        return here
    return torch.device("cuda", torch.cuda.current_device())


def explain(
    collective: str,
    nbytes: int,
    group: ProcessGroup | None = None,
    symmetric: bool = False,
    device: str = "cpu",
) -> Explanation:
    """Says which path a call takes and why.

    Args:
        collective: "all_reduce", "all_gather", …
        nbytes: bytes of a rank's input.
        group: the ranks.
        symmetric: whether the tensors are symmetric (see `empty`).
        device: "cpu" or "cuda"; for GPUs the group must have made a call there.
    """
    backend = backend_of(group, device)
    return Explanation(*backend.explain(collective, nbytes, symmetric, device))


def set_timeout(timeout: float | timedelta, group: ProcessGroup | None = None) -> None:
    """Sets how long a call may wait for peers from now on, on this rank.

    Args:
        timeout: seconds, or a timedelta.
        group: the group.
    """
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    if timeout <= timedelta(0):
        raise ValueError(f"dda.set_timeout: {timeout} is not a time to wait")
    any_backend_of(group).set_timeout(timeout)


def warmup(group: ProcessGroup | None = None, device: str | torch.device | None = None) -> None:
    """Does now what a group does at its first call. Collective.

    Args:
        group: the ranks.
        device: this rank's GPU, such as "cuda:0", whose arenas are to be made; a graph can be
            captured only after that. None: the CPU alone.
    """
    if device is not None and torch.device(device).type == "cuda":
        backend_of(group, "cuda").warm_up(str(_with_index(device)))
    barrier(group)
