"""MPI's calls, buffer to buffer through mpi4py: what MPI costs a Python program at best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from dda.bench.cases import PERIOD, DType, Row
from dda.bench.peer import Peer, UnsupportedError

# MPI's own types: its reductions know no others.
TYPES = {
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    "int16": MPI.INT16_T,
    "int32": MPI.INT32_T,
    "uint32": MPI.UINT32_T,
    "int64": MPI.INT64_T,
    "uint64": MPI.UINT64_T,
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
}
OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


class MpiPeer(Peer):
    """A rank of MPI_COMM_WORLD; its buffers are numpy arrays."""

    def __init__(self) -> None:
        self.world_comm = MPI.COMM_WORLD
        self.rank = self.world_comm.Get_rank()
        self.world = self.world_comm.Get_size()

    def versions(self) -> dict[str, str]:
        """Returns the versions of the MPI library, of the standard and of mpi4py."""
        from mpi4py import __version__

        library = MPI.Get_library_version().strip("\0\n").splitlines()[0]
        standard = ".".join(map(str, MPI.Get_version()))
        return {"library": " ".join(library.split()), "standard": standard, "mpi4py": __version__}

    def allocate(self, count: int, dtype: DType) -> Any:
        """Returns zeros."""
        if dtype.torch not in TYPES:
            raise UnsupportedError(f"MPI has no {dtype.name}")
        array = np.empty(count, dtype.torch)
        array.fill(0)  # unlike np.zeros, this touches the pages
        return array

    def spread(self, row: Row, start: int, count: int, dtype: DType) -> Any:
        """Returns a stretch of the row."""
        repeats = count // PERIOD + 2
        return np.tile(row.astype(dtype.torch), repeats)[start % PERIOD :][:count]

    def copy(self, target: Any, source: Any) -> None:
        """Writes `source` to `target`."""
        np.copyto(target, source)

    def count_different(self, array: Any, expected: Any) -> int:
        """Returns in how many elements two arrays differ."""
        return int(np.count_nonzero(array != expected))

    def barrier(self) -> None:
        """Waits until every rank is here."""
        self.world_comm.Barrier()

    def result(self, form: str) -> Any:
        """Returns where the result is: MPI puts that of an in-place reduce_scatter in front."""
        if form == "in_place" and self.case.collective == "reduce_scatter":
            return self._send[: self.case.count]
        return super().result(form)

    def bind(self, send: Any, recv: Any, in_place: bool) -> Callable[[], object]:
        """Returns the call, its arguments made ready."""
        comm, case, root = self.world_comm, self.case, self.case.root
        is_root = self.rank == root
        if case.kind.reduces and case.op not in OPS:
            raise UnsupportedError(f"MPI has no reduction {case.op}")
        op = OPS.get(case.op, MPI.SUM)
        kind = TYPES[case.dtype.torch]
        source: Any = MPI.IN_PLACE if in_place else (send, kind)
        target: Any = (recv, kind)
        match case.collective:
            case "all_reduce":
                return lambda: comm.Allreduce(source, target, op)
            case "all_gather":
                return lambda: comm.Allgather(source, target)
            case "reduce_scatter":
                into = (send, kind) if in_place else target
                return lambda: comm.Reduce_scatter_block(source, into, op)
            case "broadcast":
                if in_place or not is_root:
                    return lambda: comm.Bcast(target, root)

                def copy_and_broadcast() -> None:
                    np.copyto(recv, send)
                    comm.Bcast(target, root)

                return copy_and_broadcast
            case "reduce":
                if is_root:
                    return lambda: comm.Reduce(source, target, op, root)
                return lambda: comm.Reduce((send, kind), None, op, root)
            case "gather":
                if is_root:
                    return lambda: comm.Gather(source, target, root)
                return lambda: comm.Gather((send, kind), None, root)
            case "scatter":
                if is_root:
                    into = MPI.IN_PLACE if in_place else target
                    return lambda: comm.Scatter((send, kind), into, root)
                return lambda: comm.Scatter(None, target, root)
            case "all_to_all":
                return lambda: comm.Alltoall(source, target)
            case "sendrecv":
                following, previous = (self.rank + 1) % self.world, (self.rank - 1) % self.world
                return lambda: comm.Sendrecv(source, following, 0, target, previous, 0)
        return comm.Barrier
