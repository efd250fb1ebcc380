"""dda bench with real ranks: every collective of every backend, and the command as users run it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dda.bench.cases import COLLECTIVES, REDUCTIONS, dtype_of
from dda.bench.launch import Launcher
from dda.bench.mpi import find_mpi
from dda.bench.options import Options, Spec
from dda.bench.runner import run

MPIS = [
    Spec(name)
    for name in ("mpich", "openmpi")
    if importlib.util.find_spec("mpi4py") and (mpi := find_mpi(name)) and mpi.library_dir
]
DDA, GLOO = Spec("dda"), Spec("gloo")
SMALL = ["-b", "64", "-e", "64K", "-f", "1024", "-n", "3", "--rounds", "2"]


@pytest.fixture(scope="module")
def launcher():
    """Three ranks of each backend, which all tests of this module share."""
    options = Options("barrier", (0,), 3, (DDA, GLOO, *MPIS))
    with Launcher(options) as made:
        assert made.start(options.specs) == {}
        yield made


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives_are_right_and_timed(collective, launcher):
    sizes = (64, 65536)
    options = Options(
        collective, sizes, 3, launcher.options.specs, roots=(0, 2), iterations=3, rounds=2
    )
    lines = list(run(options, launcher.teams, lambda: None))
    kind = COLLECTIVES[collective]
    assert len(lines) == (1 if collective == "barrier" else 4 if kind.rooted else 2)
    for line in lines:
        assert line.notes == {}
        assert set(line.measured) == set(options.specs)
        for forms in line.measured.values():
            assert set(forms) == {"out_of_place", *(["in_place"] if kind.in_place else [])}
            for measurement in forms.values():
                assert measurement.wrong == 0
                assert len(measurement.rounds) == 2
                assert [len(calls) for calls in measurement.calls] == [6, 6, 6]
                assert measurement.time > 0


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "double", "int8", "uint8", "int64"])
def test_reductions_are_right(dtype, launcher):
    options = Options(
        "reduce_scatter", (4096,), 3, (), (dtype_of(dtype),), tuple(REDUCTIONS), iterations=1,
        rounds=1,
    )  # fmt: skip
    lines = list(run(options, launcher.teams, lambda: None))
    assert [line.case.op for line in lines] == REDUCTIONS
    for line in lines:
        for measurement in line.measured[DDA].values():
            assert measurement.wrong == 0
    assert any(f"no {dtype}" in note for note in lines[0].notes.values()) == (
        bool(MPIS) and dtype in ("half", "bfloat16")
    )


def command(*arguments, module="dda.bench", launcher=(), **how):
    """Runs a module of dda as a command, and returns how it ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **how.pop("environment", {})}
    run_as = [sys.executable, *launcher, "-m", module]
    return subprocess.run(
        [*run_as, *arguments], env=environment, capture_output=True, text=True, timeout=200, **how
    )


def rows_of(output):
    """Returns the columns of each line of the table."""
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


def test_command_with_levels_and_files(tmp_path):
    files = ["--json", str(tmp_path / "r.json"), "--csv", str(tmp_path / "r.csv")]
    done = command("all_reduce", *SMALL, "--backend", "dda,dda@engine,dda@dispatch", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert [row[0] for row in rows_of(done.stdout)] == ["64", "65536"]
    results = json.loads((tmp_path / "r.json").read_text())
    devices = results["config"]["devices"]
    assert len(devices) == 2 * 3
    for device in devices:
        names = {"torch"} if device["backend"] == "dda@dispatch" else {"torch", "dda"}
        assert device["threads"] == dict.fromkeys(names, 1)
    for line in results["results"]:
        assert line["compared_form"] == "out_of_place"
        engine, dispatch = (line["peers"][f"dda@{name}"] for name in ("engine", "dispatch"))
        assert engine["in_place"] is None
        assert engine["out_of_place"]["nwrong"] is dispatch["out_of_place"]["nwrong"] is None
        assert engine["out_of_place"]["time"] > 0
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 1 + 2 * (2 + 1 + 2)


@pytest.mark.parametrize("how", [["--algorithm", "tree"], ["--symmetric"]])
def test_ways_of_dda(how):
    done = command("all_reduce", *SMALL, *how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "N/A" not in done.stdout


def test_torchrun():
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = command("all_gather", *SMALL, "--backend", "dda,gloo", launcher=torchrun)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1
    assert len(rows_of(done.stdout)) == 2


def test_without_the_extension_gloo_is_measured(tmp_path):
    package = Path(importlib.util.find_spec("dda").origin).parent
    shutil.copytree(package, tmp_path / "dda", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # Not merely missing: the finder of an editable install would find the other one.
    (tmp_path / "dda/_build_info.py").write_text("raise ImportError('planted')")
    done = command("all_reduce", *SMALL, "--backend", "dda,gloo", cwd=tmp_path)
    assert done.returncode == 1
    assert "dda: only 0 of 2 ranks started" in done.stderr
    assert "dda is not built" in done.stderr
    assert len(rows_of(done.stdout)) == 2


def test_a_rank_that_ends_is_named(launcher):
    options = Options("all_reduce", (64,), 2, (GLOO,), iterations=1, rounds=1, timeout=20)
    with Launcher(options) as small:
        assert small.start(options.specs) == {}
        small.teams[0].processes[1].kill()
        (line,) = run(options, small.teams, lambda: None)
        assert line.notes[GLOO].startswith("gloo: the process of rank 1 ended")
        assert small.teams == []


def test_doctor():
    done = command("doctor", module="dda.cli")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all_reduce of 64K gives 0 wrong elements" in done.stdout
    assert "flat from 8" in done.stdout


def test_doctor_finds_what_is_broken():
    done = command("doctor", module="dda.cli", environment={"DDA_SPIN": "nonsense"})
    assert done.returncode == 1
    assert any("DDA_SPIN" in line for line in done.stdout.splitlines() if line.startswith("!"))
