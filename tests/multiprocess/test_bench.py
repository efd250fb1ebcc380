"""dda bench as a user runs it: real ranks, small sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from dda.bench.cases import COLLECTIVES
from dda.bench.mpi import find_mpi

SMALL = "-b 64 -e 64K -f 1024 -n 3 --rounds 2".split()
MPIS = [name for name in ("mpich", "openmpi") if find_mpi(name) and find_mpi(name).library_dir]


def run(*arguments, launcher=(), timeout=200, **environment):
    """Runs the command and returns how it ended."""
    module = ["-m", "dda.bench"]
    command = [*launcher, *module] if launcher else [sys.executable, *module]
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def rows_of(output):
    """Returns the columns of each line of the table."""
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collective(collective):
    done = run(collective, *SMALL, "-g", "3", "-r", "1", "--backend", "dda,gloo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    rows = rows_of(done.stdout)
    assert [int(row[0]) for row in rows] == {
        "barrier": [0],
        "all_reduce": [64, 65536],
        "reduce": [64, 65536],
        "broadcast": [64, 65536],
        "sendrecv": [64, 65536],
    }.get(collective, [60, 65532])
    in_place = "0" if COLLECTIVES[collective].in_place else "N/A"
    for row in rows:
        assert (row[8], row[12]) == ("0", in_place)
        assert len(row) == 17
        assert "N/A" not in row[13:]


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "double", "int8", "uint8", "int64"])
def test_reductions(dtype):
    done = run("all_reduce", *SMALL, "-d", dtype, "-o", "sum,prod,min,max,avg", "-g", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[3] for row in rows_of(done.stdout)[::2]] == ["sum", "prod", "min", "max", "avg"]
    assert "N/A" not in done.stdout


def test_levels_and_files(tmp_path):
    files = ["--json", str(tmp_path / "r.json"), "--csv", str(tmp_path / "r.csv")]
    done = run("all_reduce", *SMALL, "--backend", "dda,dda@engine,dda@dispatch", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    for line in results["results"]:
        assert line["compared_form"] == "out_of_place"
        engine, dispatch = (line["peers"][f"dda@{name}"] for name in ("engine", "dispatch"))
        assert engine["in_place"] is None
        assert engine["out_of_place"]["nwrong"] is dispatch["out_of_place"]["nwrong"] is None
        assert engine["out_of_place"]["time"] > 0
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 1 + 2 * (2 + 1 + 2)


@pytest.mark.parametrize("how", [["--algorithm", "flat"], ["--algorithm", "tree"], ["--symmetric"]])
def test_ways_of_dda(how):
    done = run("all_reduce", *SMALL, *how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "N/A" not in done.stdout


@pytest.mark.skipif(
    not (MPIS and importlib.util.find_spec("mpi4py")), reason="there is no MPI in the environment"
)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_mpi(collective):
    done = run(collective, *SMALL, "-g", "3", "-r", "2", "--backend", ",".join(MPIS))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert rows
    for row in rows:
        assert row[8] == "0"
        assert "N/A" not in row[13:]


def test_torchrun():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run("all_gather", *SMALL, "--backend", "dda,gloo", launcher=launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1
    assert len(rows_of(done.stdout)) == 2


def test_backend_that_is_missing_is_named():
    done = run("all_reduce", *SMALL, "--backend", "no_such_backend,gloo")
    assert done.returncode == 1
    assert "no_such_backend: only 0 of 2 ranks started" in done.stderr
    assert len(rows_of(done.stdout)) == 2  # gloo went on alone


def test_without_the_extension_gloo_is_measured(tmp_path):
    """A dda without its module stands for an install that was not built."""
    package = os.path.dirname(importlib.util.find_spec("dda").origin)
    (tmp_path / "dda").mkdir()
    for name in os.listdir(package):
        if name.endswith(".py") and name != "_build_info.py" or name == "bench":
            os.symlink(os.path.join(package, name), tmp_path / "dda" / name)
    done = run("all_reduce", *SMALL, "--backend", "dda,gloo", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "dda is not built" in done.stderr
    assert len(rows_of(done.stdout)) == 2


def test_doctor():
    done = subprocess.run(
        [sys.executable, "-m", "dda.cli", "doctor"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all_reduce of 64K gives 0 wrong elements" in done.stdout
    assert "flat from 8" in done.stdout


def test_doctor_finds_what_is_broken():
    done = subprocess.run(
        [sys.executable, "-m", "dda.cli", "doctor"],
        env={**os.environ, "DDA_SPIN": "nonsense"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert any("DDA_SPIN" in line for line in done.stdout.splitlines() if line.startswith("!"))
