"""The command line of `dda bench`: the options of nccl-tests, and those that compare backends."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from dda.bench import cases

LEVELS = ("torch", "ops", "engine", "dispatch")
DEVICES = ("cpu", "cuda")
ALGORITHMS = ("auto", "flat", "tree")
MPI_NAMES = ("mpich", "openmpi")


@dataclass(frozen=True)
class Spec:
    """A competitor: a backend, and for dda the level at which it is called."""

    backend: str
    level: str = "torch"

    def __str__(self) -> str:
        """The form in which the user writes it."""
        return self.backend if self.level == "torch" else f"{self.backend}@{self.level}"

    @property
    def is_mpi(self) -> bool:
        """Whether mpiexec must start the ranks."""
        return self.backend in MPI_NAMES

    @property
    def has_data(self) -> bool:
        """Whether results can be checked: the other levels move no data of the caller's."""
        return self.level in ("torch", "ops")


@dataclass(frozen=True)
class Options:
    """What to measure, and how often."""

    collective: str
    sizes: tuple[int, ...]
    world: int
    specs: tuple[Spec, ...]
    dtypes: tuple[cases.DType, ...] = (cases.dtype_of("float"),)
    ops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    iterations: int = 0  # 0: as many as fit into `round_seconds`
    warmup: int = 1
    rounds: int = 9
    check: int = 1
    algorithm: str = "auto"
    symmetric: bool = False
    device: str = "cpu"
    graph: int = 0  # calls in the shorter of two captured chains; 0: calls are issued one by one
    timeout: float = 300.0
    round_seconds: float = 0.005
    json: str | None = None
    csv: str | None = None
    arguments: tuple[str, ...] = ()  # what was parsed, for the record

    def cases(self) -> Iterator[cases.Case]:
        """Yields the lines of the table; sizes that come to the same count come once."""
        kind = cases.COLLECTIVES[self.collective]
        ops = self.ops if kind.reduces else ("none",)
        roots = self.roots if kind.rooted else (-1,)
        seen = set()
        for dtype, op, root, size in product(self.dtypes, ops, roots, self.sizes):
            case = cases.make_case(self.collective, size, self.world, dtype, op, root)
            if case not in seen:
                seen.add(case)
                yield case


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as 8, 64K, 1.5M or 2G; raises ValueError."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    unit = units.get(text[-1:].upper())
    size = float(text[:-1]) * unit if unit else int(text)
    if size < 0:
        raise ValueError(f"negative size {text!r}")
    return int(size)


def size_text(size: float) -> str:
    """Returns a size in bytes as 512, 64K or 1M."""
    for unit, name in ((2**30, "G"), (2**20, "M"), (2**10, "K")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return f"{size:g}"


def sizes_between(first: int, last: int, factor: float, step: int) -> tuple[int, ...]:
    """Returns the sizes from `first` to `last`, multiplied by `factor`, or `step` bytes apart."""
    sizes = [first]
    while sizes[-1] < last:
        following = sizes[-1] + step if step > 0 else max(1, int(sizes[-1] * factor))
        if following <= sizes[-1]:
            break
        sizes.append(following)
    return tuple(size for size in sizes if size <= last) or (first,)


def parse_spec(text: str, level: str) -> Spec:
    """Returns the competitor that `text` names: BACKEND or dda@LEVEL. Raises ValueError."""
    backend, _, own_level = text.partition("@")
    if own_level and (backend != "dda" or own_level not in LEVELS):
        raise ValueError(f"{text!r}: only dda has levels, and they are {', '.join(LEVELS)}")
    return Spec(backend, own_level or (level if backend == "dda" else "torch"))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of `dda bench`."""
    parser = argparse.ArgumentParser(
        prog="dda bench",
        description="Times and checks collectives, with the options and columns of nccl-tests.",
        epilog="Sizes take K, M and G. Under torchrun the environment gives the ranks.",
    )
    add = parser.add_argument
    add("collective", choices=list(cases.COLLECTIVES))
    add("-b", "--minbytes", type=parse_size, default=8, metavar="SIZE", help="default 8")
    add("-e", "--maxbytes", type=parse_size, default=2**26, metavar="SIZE", help="default 64M")
    add("-f", "--stepfactor", type=float, default=2, metavar="N", help="default 2")
    add(
        "-i",
        "--stepbytes",
        type=parse_size,
        default=0,
        metavar="SIZE",
        help="fixed distance between sizes, instead of -f",
    )
    add(
        "-n",
        "--iters",
        type=int,
        default=0,
        metavar="N",
        help="calls per round; default: as many as take 5 ms",
    )
    add("-w", "--warmup_iters", type=int, default=1, metavar="N", help="per round; default 1")
    add(
        "-c",
        "--check",
        type=int,
        default=1,
        metavar="N",
        help="calls whose result is checked; 0 checks none; default 1",
    )
    add(
        "-g",
        "--ngpus",
        "--ranks",
        dest="ranks",
        type=int,
        default=None,
        metavar="N",
        help="ranks; default 2, or what torchrun says",
    )
    add(
        "-d",
        "--dtype",
        "--datatype",
        default="float",
        metavar="LIST",
        help="comma list or 'all'; default float",
    )
    add(
        "-o",
        "--op",
        default="sum",
        metavar="LIST",
        help=f"comma list of {', '.join(cases.REDUCTIONS)} or 'all'; default sum",
    )
    add("-r", "--root", default="0", metavar="LIST", help="comma list, or -1 for all; default 0")
    add(
        "-G",
        "--graph",
        "--cudagraph",
        dest="graph",
        type=int,
        default=0,
        metavar="N",
        help="capture chains of N and of 3 N calls, and take the slope; needs --device cuda",
    )
    add("-T", "--timeout", type=float, default=300, metavar="S", help="of one step; default 300")
    add("-J", "--json", metavar="FILE", help="write results as JSON")
    add("--csv", metavar="FILE", help="write results as CSV")
    add(
        "--backend",
        default="dda",
        metavar="LIST",
        help="comma list of dda, gloo, mpich, openmpi, mpi (the first MPI found) or another torch "
        "backend; the ratios are those of the first. dda@engine and dda@dispatch name a level",
    )
    add(
        "--level",
        choices=LEVELS,
        default="torch",
        help="how dda is called: torch.distributed call to call (the default), dda's own function "
        "of it (ops), a loop in C++ (engine), or a backend that does nothing (dispatch: what "
        "torch's own calls cost)",
    )
    add("--algorithm", choices=ALGORITHMS, default="auto", help="of dda; default auto")
    add("--device", choices=DEVICES, default="cpu", help="where the buffers are; default cpu")
    add("--symmetric", action="store_true", help="dda's buffers are symmetric tensors")
    add(
        "--rounds",
        type=int,
        default=9,
        metavar="N",
        help="rounds, in each of which every backend takes its turn; default 9",
    )
    return parser  # fmt: skip


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Options:
    """Reads the command line.

    Args:
        arguments: of `dda bench`, without the program's name.
        environment: where torchrun's WORLD_SIZE is looked for.

    Raises:
        SystemExit: with a message, after a bad option.
    """
    parser = make_parser()
    given = parser.parse_args(arguments)
    try:
        return replace(_options(given, environment), arguments=tuple(arguments))
    except ValueError as error:
        parser.error(str(error))


def _options(given: argparse.Namespace, environment: Mapping[str, str]) -> Options:
    world = _world(given.ranks, environment.get("WORLD_SIZE"))
    if given.graph and given.device != "cuda":
        raise ValueError("-G captures a CUDA graph; it needs --device cuda")
    if given.rounds < 1 or min(given.iters, given.warmup_iters, given.check, given.graph) < 0:
        raise ValueError("--rounds must be at least 1, and -n, -w, -c and -G at least 0")
    if given.stepfactor <= 1 and not given.stepbytes:
        raise ValueError("-f must be greater than 1")
    roots = range(world) if given.root == "-1" else [int(r) for r in given.root.split(",")]
    if not all(0 <= root < world for root in roots):
        raise ValueError(f"-r {given.root}: there are {world} ranks, from 0 to {world - 1}")
    names = [d.name for d in cases.DTYPES] if given.dtype == "all" else given.dtype.split(",")
    ops = cases.REDUCTIONS if given.op == "all" else given.op.split(",")
    for op in ops:
        if op not in cases.REDUCTIONS:
            raise ValueError(f"unknown reduction {op!r}; one of {', '.join(cases.REDUCTIONS)}")
    specs = [parse_spec(text, given.level) for text in given.backend.split(",")]
    if len(set(specs)) < len(specs):
        raise ValueError(f"--backend {given.backend}: a backend is named twice")
    if given.device == "cuda":
        for spec in specs:
            if spec.is_mpi or spec.level in ("engine", "dispatch"):
                raise ValueError(f"--backend {spec}: it is measured on the CPU only")
    if given.algorithm != "auto" and not any(spec.backend == "dda" for spec in specs):
        raise ValueError("--algorithm chooses an algorithm of dda, which --backend does not name")
    if given.collective == "barrier":
        sizes: tuple[int, ...] = (0,)
    else:
        sizes = sizes_between(given.minbytes, given.maxbytes, given.stepfactor, given.stepbytes)
    return Options(
        collective=given.collective,
        sizes=sizes,
        world=world,
        specs=tuple(specs),
        dtypes=tuple(cases.dtype_of(name) for name in names),
        ops=tuple(ops),
        roots=tuple(roots),
        iterations=given.iters,
        warmup=given.warmup_iters,
        rounds=given.rounds,
        check=given.check,
        algorithm=given.algorithm,
        symmetric=given.symmetric,
        device=given.device,
        graph=given.graph,
        timeout=given.timeout,
        json=given.json,
        csv=given.csv,
    )


def _world(asked: int | None, world_size: str | None) -> int:
    """Returns the number of ranks: torchrun's word if there is one, and -g must agree with it."""
    if world_size is None:
        world = 2 if asked is None else asked
    else:
        world = int(world_size)
        if asked not in (None, world):
            raise ValueError(f"-g {asked}, but the launcher started {world} ranks; leave -g out")
    if world < 1:
        raise ValueError(f"-g {world}: at least one rank is needed")
    return world
