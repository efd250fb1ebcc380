"""How a program gets the backend: names, devices, re-creation, and what is found without an import.

The tests of the entry points need dda to be installed.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import BACKEND, run_ranks


def use(rank: int, world: int) -> None:
    """What every way of initialising must give."""
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world)
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    assert x.item() == world * (world + 1) / 2
    dist.barrier()


def named(rank: int, world: int, expected: str) -> None:
    use(rank, world)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.name() == expected
    dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("string", "cpu"),
    [
        (BACKEND, BACKEND),
        (f"cpu:{BACKEND}", BACKEND),
        (f"cpu:{BACKEND},cuda:{BACKEND}", BACKEND),
        (f"cpu:{BACKEND},cuda:gloo", BACKEND),
        (f"cpu:gloo,cuda:{BACKEND}", "gloo"),
    ],
    ids=str,
)
def test_backend_string(string: str, cpu: str) -> None:
    run_ranks(named, 2, cpu, backend=string)


def group_over_gloo(rank: int, world: int) -> None:
    use(rank, world)
    group = dist.new_group(backend=BACKEND)
    assert dist.get_backend(group) == BACKEND
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x, group=group)
    assert x.item() == 3


def test_group_beside_gloo() -> None:
    run_ranks(group_over_gloo, 2, backend="cpu:gloo,cuda:dda" if BACKEND == "dda" else "gloo")


def init(rank: int, world: int, store: dist.Store) -> None:
    importlib.import_module("dda")
    dist.init_process_group(
        BACKEND, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=20)
    )


def cycles(rank: int, world: int, path: str, n: int, every: int) -> None:
    """Makes and destroys the default group `n` times over one store; uses it each `every` times."""
    store = dist.FileStore(path, world)
    for i in range(n):
        init(rank, world, store)
        if i % every == 0:
            use(rank, world)
        dist.destroy_process_group()


recreates = pytest.mark.skipif(BACKEND == "gloo", reason="gloo finds the addresses of before")


@recreates
@pytest.mark.parametrize("every", [1, 2])
def test_recreate_over_one_store(tmp_path: Path, every: int) -> None:
    run_ranks(cycles, 2, str(tmp_path / "store"), 50, every, backend=None)


def recreate_one_late(rank: int, world: int, path: str) -> None:
    """A rank that is still in the group before does not meet those of the next."""
    store = dist.FileStore(path, world)
    for i in range(4):
        init(rank, world, store)
        use(rank, world)
        if i % world == rank:
            time.sleep(0.3)
        dist.destroy_process_group()


@recreates
def test_recreate_with_one_rank_late(tmp_path: Path) -> None:
    run_ranks(recreate_one_late, 3, str(tmp_path / "store"), backend=None)


ONE_RANK = """
dist.init_process_group("dda", init_method="file://" + sys.argv[1], rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [1, 1, 1], x
dist.destroy_process_group()
"""
# Runs before anything else in a Python that finds it: makes the registration fail.
PLANTED = """
import sys
class Planter:
    def find_spec(self, name, path=None, target=None):
        if name == "dda._autoload":
            backend = sys.modules["torch.distributed"].Backend
            register = backend.register_backend
            def refuse(name, *args, **kwargs):
                if name == "dda":
                    raise RuntimeError("planted fault")
                return register(name, *args, **kwargs)  # torch 2.14 registers its own this way
            backend.register_backend = refuse
sys.meta_path.insert(0, Planter())
"""


NOT_FOR_PROGRAMS = ("DDA_TEST_BACKEND", "TORCH_DEVICE_BACKEND_AUTOLOAD")


def assert_runs(program: str, *args: str, **env: str) -> str:
    """Runs a program that must succeed; returns what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env={k: v for k, v in os.environ.items() if k not in NOT_FOR_PROGRAMS} | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("group", ["torch.backends", "torch.distributed.backends"])
def test_entry_points(group: str) -> None:
    (entry,) = {e for e in entry_points(group=group) if e.name == "dda"}
    assert entry.value == "dda._autoload:register"


def test_found_without_an_import(tmp_path: Path) -> None:
    checks = 'import sys, torch, torch.distributed as dist\nassert "dda._C" not in sys.modules\n'
    assert_runs(checks + ONE_RANK, str(tmp_path / "store"))


@pytest.mark.parametrize("imports", ["import torch, dda", "import dda, torch"])
def test_import_orders(tmp_path: Path, imports: str) -> None:
    program = f"import sys\n{imports}\nimport torch.distributed as dist\n{ONE_RANK}"
    assert_runs(program, str(tmp_path / "store"))
    assert_runs(program, str(tmp_path / "off"), TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_autoload_off() -> None:
    program = "import torch.distributed as dist; assert 'dda' not in dist.Backend.backend_list"
    assert_runs(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_broken_autoload_leaves_torch_usable(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    program = f"""
import sys, torch, torch.distributed as dist
assert "dda" not in dist.Backend.backend_list
{ONE_RANK.replace('"dda"', '"gloo"')}
"""
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    warning = assert_runs(program, str(tmp_path / "store"), PYTHONPATH=path)
    assert warning.count("planted fault") == 1, warning
    assert "dda" in warning
