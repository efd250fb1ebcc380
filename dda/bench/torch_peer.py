"""torch.distributed's calls, with any backend; and dda below them.

torch.distributed reduces and broadcasts in place only, so the out-of-place form of all_reduce,
reduce and broadcast is what a user has to write: a copy, then the call. Level "engine" times the
loop that dda's engine runs in C++, and level "dispatch" makes torch's calls on a backend that does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dda.bench.cases import PERIOD, Case, DType, Row
from dda.bench.options import Spec
from dda.bench.peer import Peer, UnsupportedError

OPS = {
    "none": dist.ReduceOp.SUM,
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}
NULL_BACKEND = "dda_null"


def make_torch_peer(spec: Spec, store: dist.Store, rank: int, world: int, **how: Any) -> Peer:
    """Makes the default group and returns this rank of it.

    Args:
        spec: backend and level.
        store: where the ranks of the group meet.
        rank: of this process.
        world: number of ranks.
        how: `timeout` in seconds, `algorithm`, `symmetric`, `device`, `graph`.
    """
    backend = spec.backend
    if backend == "dda":
        import dda  # noqa: F401 (registers the backend)
    if spec.level == "dispatch":
        backend = NULL_BACKEND
        _register_null_backend()
    timeout = timedelta(seconds=how.pop("timeout"))
    on_gpu, graph = how.pop("device") == "cuda", how.pop("graph")
    if on_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    if on_gpu:
        from dda.bench.cuda_peer import CudaPeer

        return CudaPeer(spec, graph=graph, **how)
    kind = EnginePeer if spec.level == "engine" else TorchPeer
    return kind(spec, **how)


def _register_null_backend() -> None:
    from dda._load import extension

    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> object:
        return extension().NullBackend(rank, size)

    dist.Backend.register_backend(NULL_BACKEND, create, devices=["cpu"])


class TorchPeer(Peer):
    """A rank of torch's default group; its buffers are tensors."""

    def __init__(self, spec: Spec, algorithm: str, symmetric: bool) -> None:
        self.spec = spec
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.algorithm = algorithm if spec.backend == "dda" else "auto"
        self.symmetric = symmetric and spec.backend == "dda"

    def versions(self) -> dict[str, str]:
        """Returns torch's version, and dda's where it is measured."""
        found = {"torch": str(torch.__version__)}
        if self.spec.backend == "dda":
            import dda

            found["dda"] = dda.__version__
        return found

    def threads(self) -> dict[str, int]:
        """Returns torch's number of threads, and how many a call of dda's uses at most."""
        found = {"torch": torch.get_num_threads()}
        if self.spec.backend == "dda" and self.spec.level != "dispatch":
            import dda

            found["dda"] = dda.explain("all_reduce", 1 << 40).blocks
        return found

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()

    def explain(self, collective: str, sizes: Sequence[int]) -> list[str]:
        """Returns the algorithm that dda takes for each size in bytes of a rank's input."""
        import dda

        return [dda.explain(collective, size).algorithm for size in sizes]

    def allocate(self, count: int, dtype: DType) -> Any:
        """Returns zeros, in symmetric memory if asked for."""
        if self.symmetric:
            import dda

            return dda.empty(count, dtype=getattr(torch, dtype.torch))
        return torch.zeros(count * dtype.size, dtype=torch.uint8).view(getattr(torch, dtype.torch))

    def spread(self, row: Row, start: int, count: int, dtype: DType) -> Any:
        """Returns a stretch of the row."""
        one = torch.from_numpy(row).to(getattr(torch, dtype.torch))
        repeats = count // PERIOD + 2
        start %= PERIOD
        return bits_of(one).repeat(repeats)[start : start + count].view(one.dtype)

    def copy(self, target: Any, source: Any) -> None:
        """Writes `source` to `target`."""
        target.copy_(source)

    def count_different(self, array: Any, expected: Any) -> int:
        """Returns in how many elements two tensors differ; bit by bit, as zeros have no sign."""
        return int((bits_of(array) != bits_of(expected)).sum())

    def barrier(self) -> None:
        """Waits until every rank is here."""
        dist.barrier()

    def bind(self, send: Any, recv: Any, in_place: bool) -> Callable[[], object]:
        """Returns the call, its arguments made ready."""
        case, root, n = self.case, self.case.root, self.world
        is_root = self.rank == root
        op = OPS[case.op]
        if self.algorithm != "auto" or self.spec.level == "ops":
            return self._bind_own(send, recv)
        match case.collective:
            case "all_reduce":
                call: Callable[[], object] = lambda: dist.all_reduce(recv, op)  # noqa: E731
                return call if in_place else after_copy(recv, send, call)
            case "reduce":
                call = lambda: dist.reduce(recv, root, op)  # noqa: E731
                return call if in_place else after_copy(recv, send, call)
            case "broadcast":
                call = lambda: dist.broadcast(recv, root)  # noqa: E731
                return call if in_place or not is_root else after_copy(recv, send, call)
            case "all_gather":
                return lambda: dist.all_gather_into_tensor(recv, send)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(recv, send, op)
            case "gather":
                parts = list(recv.chunk(n)) if is_root else None
                return lambda: dist.gather(send, parts, root)
            case "scatter":
                parts = list(send.chunk(n)) if is_root else None
                return lambda: dist.scatter(recv, parts, root)
            case "all_to_all":
                return lambda: dist.all_to_all_single(recv, send)
            case "sendrecv":
                if n == 1:
                    raise UnsupportedError("torch.distributed sends to other ranks only")
                return lambda: send_receive(send, recv, (self.rank + 1) % n, (self.rank - 1) % n)
        return dist.barrier

    def _bind_own(self, send: Any, recv: Any) -> Callable[[], object]:
        """Returns dda's own function, of which all_reduce takes an algorithm."""
        import dda

        case, algorithm = self.case, self.algorithm
        op = {"prod": "product"}.get(case.op, case.op)
        if case.collective == "all_reduce":
            return lambda: dda.all_reduce(send, op, out=recv, algorithm=algorithm)
        if algorithm != "auto":
            raise UnsupportedError("--algorithm: only all_reduce has several")
        if case.collective == "all_gather":
            return lambda: dda.all_gather(send, out=recv)
        if case.collective == "reduce_scatter":
            return lambda: dda.reduce_scatter(send, op, out=recv)
        raise UnsupportedError("level ops: all_reduce, all_gather and reduce_scatter only")


class EnginePeer(TorchPeer):
    """A rank whose calls are made by a loop in C++, without torch and without Python."""

    def prepare(self, case: Case) -> None:
        """Makes nothing: the loop brings its own buffers."""
        self.case = case

    def time(self, form: str, iterations: int, warmup: int) -> list[float]:
        """Returns the microseconds of each call in the loop."""
        group = dist.distributed_c10d._get_default_group()
        backend: Any = group._get_backend(torch.device("cpu"))
        case = self.case
        times: list[float] = []
        for calls in (warmup, iterations):
            self.barrier()
            times = backend.engine_time(
                case.collective,
                case.size,
                max(1, calls),
                dtype=case.dtype.torch,
                algorithm=self.algorithm,
                symmetric=self.symmetric,
            )
        return times


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor as integers of the same width, which torch can repeat."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(widths[tensor.element_size()])


def after_copy(target: Any, source: Any, call: Callable[[], object]) -> Callable[[], object]:
    """Returns a function that copies, then calls."""

    def copy_and_call() -> None:
        target.copy_(source)
        call()

    return copy_and_call


def send_receive(send: Any, recv: Any, following: int, previous: int) -> None:
    """Sends to the next rank and receives from the one before."""
    work = dist.isend(send, following)
    dist.recv(recv, previous)
    if work is not None:
        work.wait()
