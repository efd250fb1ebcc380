"""`dda doctor`: says what this machine and this install can do, and what is broken.

Each finding has a name, a text, and whether it is in order. The last ones come from a real group of
two ranks, which also tell which algorithm every size takes. The exit status is 1 if anything is
broken; what is merely absent, such as an MPI to compare with, is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from itertools import groupby
from typing import NamedTuple

from dda._version import __version__
from dda.bench.cases import COLLECTIVES, dtype_of, make_case
from dda.bench.machine import describe_machine
from dda.bench.mpi import find_mpi
from dda.bench.options import MPI_NAMES, Options, Spec, size_text

SIZES = tuple(2**k for k in range(3, 27))


class Finding(NamedTuple):
    """One line of the doctor's report."""

    name: str
    text: str
    ok: bool = True


def find_software() -> Iterator[Finding]:
    """Yields versions, what dda was built with, and how it is configured."""
    yield Finding("python", f"{platform.python_version()}, {sys.executable}")
    import torch

    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    yield Finding("dda", __version__)
    from dda._load import extension

    c = extension()
    from dda import _build_info

    build = vars(_build_info)
    for name in ("DEVICE", "COMPILER", "INSTRUCTION_SETS", "TORCH", "FAILPOINTS"):
        value = build.get(name)
        text = " ".join(value) if isinstance(value, list) else str(value)
        yield Finding(f"  built: {name.lower().replace('_', ' ')}", text)
    bad = c.check_env()
    yield Finding("environment", bad or c.env_fingerprint() or "defaults", not bad)
    import torch.distributed as dist

    registered = "dda" in dist.Backend.backend_list
    yield Finding("backends", " ".join(dist.Backend.backend_list), registered)
    found = [entry.value for entry in entry_points(group="torch.backends") if entry.name == "dda"]
    text = found[0] if found else "none, so programs must import dda before they name the backend"
    yield Finding("entry point", text)


def find_machine() -> Iterator[Finding]:
    """Yields what the machine has, and whether it lets processes share memory."""
    for name, text in describe_machine().items():
        yield Finding(name.replace("_", " "), text)
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        descriptor = os.memfd_create("dda-doctor")
        try:
            os.posix_fallocate(descriptor, 0, page)
        finally:
            os.close(descriptor)
        yield Finding("memfd", "anonymous shared memory works")
    except OSError as error:
        text = f"{error}; dda shares memory through memfd_create, which this system must allow"
        yield Finding("memfd", text, False)
    for name, kind, unit in (
        ("open files", resource.RLIMIT_NOFILE, ""),
        ("address space", resource.RLIMIT_AS, " bytes"),
    ):
        limit = resource.getrlimit(kind)[0]
        text = "none" if limit == resource.RLIM_INFINITY else f"{limit}{unit}"
        yield Finding(f"limit of {name}", text)


def find_peers() -> Iterator[Finding]:
    """Yields what dda bench can compare with."""
    yield Finding("mpi4py", "found" if importlib.util.find_spec("mpi4py") else "not installed")
    for name in MPI_NAMES:
        mpi = find_mpi(name)
        absent = f"not found; it comes with: pip install mpi4py {name}"
        yield Finding(name, " ".join(mpi.launcher) if mpi else absent)


def find_group(world: int) -> Iterator[Finding]:
    """Makes a group, checks a call, and yields which algorithm each size takes."""
    from dda.bench.launch import Launcher, TeamError
    from dda.bench.peer import UnsupportedError

    options = Options("all_reduce", (2**16,), world, (Spec("dda"),), timeout=60)
    name = f"{world} ranks"
    with Launcher(options) as launcher:
        failures = launcher.start(options.specs)
        for text in failures.values():
            yield Finding(name, text, False)
        for team in launcher.teams:
            case = make_case("all_reduce", 2**16, world, dtype_of("float"))
            try:
                team.ask("prepare", case, timeout=options.timeout)
                wrong = sum(team.ask("check", "in_place", timeout=options.timeout))
                text = f"all_reduce of 64K gives {wrong} wrong elements of {case.count}"
                yield Finding(name, text, wrong == 0)
                yield Finding(f"algorithms, {name}", "by bytes of a rank's input")
                for collective in COLLECTIVES:
                    if collective in ("sendrecv", "barrier"):
                        continue
                    told = team.ask("explain", collective, SIZES, timeout=options.timeout)[0]
                    yield Finding(f"  {collective}", ranges(SIZES, told))
            except (TeamError, UnsupportedError) as error:
                yield Finding(name, str(error), False)


def ranges(sizes: Sequence[int], algorithms: Sequence[str]) -> str:
    """Returns which algorithm is taken from which size on, such as "flat from 8, tree from 64K"."""
    runs = groupby(zip(sizes, algorithms, strict=True), key=lambda pair: pair[1])
    return ", ".join(f"{name} from {size_text(next(pairs)[0])}" for name, pairs in runs)


def guarded(name: str, find: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yields findings; an error that ends them becomes the last."""
    try:
        yield from find()
    except Exception as error:
        yield Finding(name, f"{type(error).__name__}: {error}", False)


def main(arguments: Sequence[str]) -> int:
    """Runs `dda doctor` with its arguments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="dda doctor", description=__doc__.partition("\n")[0])
    parser.add_argument("-g", "--ranks", type=int, default=2, help="of the group; default 2")
    given = parser.parse_args(arguments)
    if given.ranks < 1:
        parser.error(f"-g {given.ranks}: at least one rank is needed")
    broken = 0
    for name, find in (
        ("software", find_software),
        ("machine", find_machine),
        ("peers", find_peers),
        ("group", lambda: find_group(given.ranks)),
    ):
        for finding in guarded(name, find):
            broken += not finding.ok
            mark = " " if finding.ok else "!"
            print(f"{mark} {finding.name:<26} {finding.text}", flush=True)
    print(f"\n{broken} broken" if broken else "\nin order")
    return int(broken > 0)
