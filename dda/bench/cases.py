"""What each collective moves, which bytes go in, and which must come out.

A *case* is one line of the table: a collective, a dtype, a reduction, a root and a `size` in bytes,
which means what it means in nccl-tests. A buffer holds one or more *parts* of `count` elements; the
table below says how many parts a rank sends and receives, and how a bandwidth seen by the caller
(`size` / time) becomes the bandwidth that the links must have (`bus_factor`).

Rank r's input is its *row* over and over: `PERIOD` small integers, chosen so that the reduction
over all ranks is a small integer too, exact in the dtype in whichever order it is computed. So what
must come out is known exactly, and one wrong element is one error. A stretch of a buffer is written
(row, start): `count` elements that begin at the row's element `start`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

PERIOD = 1021  # a prime, so that no chunk and no part begins at the start of a row again

Row: TypeAlias = npt.NDArray[np.int64]
Stretch: TypeAlias = tuple[Row, int]


@dataclass(frozen=True)
class DType:
    """An element type: nccl-tests' name, torch's, its bytes, and up to where its integers go."""

    name: str
    torch: str
    size: int
    largest: int  # every integer from 0 to here is exact


DTYPES = [
    DType("int8", "int8", 1, 127),
    DType("uint8", "uint8", 1, 255),
    DType("int16", "int16", 2, 2**15 - 1),
    DType("int32", "int32", 4, 2**31 - 1),
    DType("uint32", "uint32", 4, 2**32 - 1),
    DType("int64", "int64", 8, 2**53),
    DType("uint64", "uint64", 8, 2**53),
    DType("half", "float16", 2, 2**11),
    DType("bfloat16", "bfloat16", 2, 2**8),
    DType("float", "float32", 4, 2**24),
    DType("double", "float64", 8, 2**53),
    DType("f8e4m3", "float8_e4m3fn", 1, 2**4),
    DType("f8e5m2", "float8_e5m2", 1, 2**3),
]
REDUCTIONS = ["sum", "prod", "min", "max", "avg"]


def dtype_of(name: str) -> DType:
    """Returns the dtype that nccl-tests or torch calls `name`; raises ValueError for no dtype."""
    for dtype in DTYPES:
        if name in (dtype.name, dtype.torch):
            return dtype
    raise ValueError(f"unknown dtype {name!r}; one of {', '.join(d.name for d in DTYPES)}")


@dataclass(frozen=True)
class Collective:
    """How a collective uses its buffers.

    Attributes:
        send_parts: parts in the send buffer, given the number of ranks.
        recv_parts: parts in the receive buffer.
        bus_factor: bus bandwidth over `size` / time, given the number of ranks.
        in_place: where the two buffers share memory in the in-place form: "whole" (one buffer),
            "send" (the send buffer is this rank's part of the receive buffer), "recv" (the other
            way round), or "" (there is no such form).
        usual: the form in which torch.distributed is called: "in_place" or "out_of_place".
    """

    send_parts: Callable[[int], int]
    recv_parts: Callable[[int], int]
    bus_factor: Callable[[int], float]
    in_place: str
    usual: str
    reduces: bool = False
    rooted: bool = False

    def parts(self, world: int) -> int:
        """How many parts `size` spans: the larger of the two buffers."""
        return max(self.send_parts(world), self.recv_parts(world))


def one(n: int) -> int:
    """A buffer that does not grow with the number of ranks."""
    return 1


def each(n: int) -> int:
    """A buffer with a part for each of n ranks."""
    return n


def others(n: int) -> float:
    """The share of a buffer that comes from, or goes to, other ranks."""
    return (n - 1) / n


COLLECTIVES = {
    "all_reduce": Collective(
        one, one, lambda n: 2 * others(n), "whole", "in_place", reduces=True),
    "all_gather": Collective(one, each, others, "send", "out_of_place"),
    "reduce_scatter": Collective(each, one, others, "recv", "out_of_place", reduces=True),
    "broadcast": Collective(one, one, lambda n: 1.0, "whole", "in_place", rooted=True),
    "reduce": Collective(
        one, one, lambda n: 1.0, "whole", "in_place", reduces=True, rooted=True),
    "gather": Collective(one, each, others, "send", "out_of_place", rooted=True),
    "scatter": Collective(each, one, others, "recv", "out_of_place", rooted=True),
    "all_to_all": Collective(each, each, others, "", "out_of_place"),
    "sendrecv": Collective(one, one, lambda n: 1.0, "", "out_of_place"),
    "barrier": Collective(lambda n: 0, lambda n: 0, lambda n: 0.0, "", "out_of_place"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    collective: str
    dtype: DType
    op: str
    root: int
    count: int
    world: int

    @property
    def kind(self) -> Collective:
        """The collective's row in the table above."""
        return COLLECTIVES[self.collective]

    @property
    def size(self) -> int:
        """Bytes of the larger buffer of a rank."""
        return self.count * self.kind.parts(self.world) * self.dtype.size

    def row(self, rank: int) -> Row:
        """Returns what rank `rank` sends, one period of it; see `has_exact_rows`."""
        n, largest = self.world, self.dtype.largest
        random = np.random.default_rng(rank)
        if not self.kind.reduces or self.op in ("min", "max"):
            return random.integers(0, min(largest, 127) + 1, PERIOD)
        if self.op == "prod":  # of three factors at most
            return random.integers(1, 3, PERIOD) if rank < 3 else np.ones(PERIOD, np.int64)
        unit = n if self.op == "avg" else 1  # a multiple of n from each makes the average whole
        return unit * random.integers(0, max(1, min(largest // (n * unit), 127)) + 1, PERIOD)

    @property
    def has_exact_rows(self) -> bool:
        """Whether every partial result of the reduction of the rows is exact in the dtype."""
        unit = {"sum": 1, "avg": self.world}.get(self.op, 0) if self.kind.reduces else 0
        return self.world * unit <= self.dtype.largest

    def reduced(self) -> Row:
        """Returns the reduction of all ranks' rows."""
        rows = [self.row(rank) for rank in range(self.world)]
        if self.op == "avg":
            return np.asarray(np.sum(rows, axis=0) // self.world)
        functions = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
        return np.asarray(functions[self.op].reduce(rows))

    def inputs(self, rank: int) -> list[Stretch]:
        """Returns the parts of rank `rank`'s send buffer."""
        row = self.row(rank)
        return [(row, p * self.count) for p in range(self.kind.send_parts(self.world))]

    def outputs(self, rank: int) -> list[Stretch]:
        """Returns the parts that must be in rank `rank`'s receive buffer, if it has one."""
        ranks, own = range(self.world), rank * self.count
        match self.collective:
            case "all_reduce":
                return [(self.reduced(), 0)]
            case "reduce_scatter":
                return [(self.reduced(), own)]
            case "reduce":
                return [(self.reduced(), 0)] if rank == self.root else []
            case "all_gather":
                return [(self.row(r), 0) for r in ranks]
            case "gather":
                return [(self.row(r), 0) for r in ranks] if rank == self.root else []
            case "broadcast":
                return [(self.row(self.root), 0)]
            case "scatter":
                return [(self.row(self.root), own)]
            case "all_to_all":
                return [(self.row(r), own) for r in ranks]
            case "sendrecv":
                return [(self.row((rank - 1) % self.world), 0)]
        return []


def make_case(
    collective: str, size: int, world: int, dtype: DType, op: str = "sum", root: int = 0
) -> Case:
    """Returns the case whose size is at most `size` bytes, but at least one element a part.

    Args:
        collective: a key of COLLECTIVES.
        size: in bytes, of the larger buffer of a rank, as in nccl-tests.
        world: the number of ranks.
        dtype: of the elements.
        op: of REDUCTIONS; used where the collective reduces.
        root: the root's rank; used where the collective has one.
    """
    kind = COLLECTIVES[collective]
    parts = kind.parts(world)
    count = max(1, size // dtype.size // parts) if size > 0 and parts > 0 else 0
    return Case(
        collective,
        dtype,
        op if kind.reduces else "none",
        root if kind.rooted else -1,
        count,
        world,
    )
