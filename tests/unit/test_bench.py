"""dda bench without its processes: sizes, inputs, checks, statistics, the table and the files."""

# ruff: noqa: D102 (the methods of Copying are described where they are declared)
from __future__ import annotations

import csv
import json
from itertools import permutations, product

import numpy as np
import pytest
import torch

from dda.bench.cases import COLLECTIVES, DTYPES, REDUCTIONS, dtype_of, make_case
from dda.bench.doctor import ranges
from dda.bench.mpi import find_mpi
from dda.bench.options import Spec, parse, parse_size, sizes_between
from dda.bench.peer import FORMS, Peer
from dda.bench.plot import curves_of, draw
from dda.bench.report import CSV_COLUMNS, Report, figure
from dda.bench.runner import Line, Measurement
from dda.bench.torch_peer import OPS, TorchPeer
from dda.cli import COMMANDS, main


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("64K", 65536), ("1.5M", 3 * 2**19), ("2g", 2**31), ("0", 0)]
)
def test_parse_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "12Q"])
def test_parse_size_refuses(text):
    with pytest.raises(ValueError):
        parse_size(text)


def test_sizes():
    assert sizes_between(8, 64, 2, 0) == (8, 16, 32, 64)
    assert sizes_between(8, 60, 2, 0) == (8, 16, 32)
    assert sizes_between(8, 30, 2, 10) == (8, 18, 28)
    assert sizes_between(64, 8, 2, 0) == (64,)
    assert sizes_between(0, 4, 2, 0) == (0, 1, 2, 4)


def parse_line(line):
    return parse(line.split(), {})


def test_options_follow_nccl_tests():
    given = parse_line("all_gather -b 1K -e 4K -f 2 -g 4 -d half,float -n 7 -w 3 -c 0")
    assert given.sizes == (1024, 2048, 4096)
    assert (given.world, given.iterations, given.warmup, given.check) == (4, 7, 3, 0)
    assert [case.count for case in given.cases()] == [128, 256, 512, 64, 128, 256]


def test_all_roots_and_all_ops():
    given = parse_line("reduce -b 64 -e 64 -g 3 -o all -r -1")
    assert [(c.op, c.root) for c in given.cases()] == list(product(REDUCTIONS, range(3)))


def test_torchrun_gives_the_ranks():
    assert parse(["barrier"], {"WORLD_SIZE": "5"}).world == 5
    assert parse(["barrier", "-g", "5"], {"WORLD_SIZE": "5"}).world == 5


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("all_reduce -g 0", "at least one rank"),
        ("all_reduce -o median", "unknown reduction"),
        ("all_reduce -d float33", "unknown dtype"),
        ("reduce -g 2 -r 2", "from 0 to 1"),
        ("all_reduce -G 1", "CUDA graph"),
        ("all_reduce -f 1", "-f must be"),
        ("all_reduce --backend gloo@engine", "only dda has levels"),
        ("all_reduce --backend gloo,gloo", "named twice"),
        ("all_reduce --backend gloo --algorithm flat", "an algorithm of dda"),
        ("all_reduce -g 3", "the launcher started 2"),
    ],
)
def test_options_refuse(line, complaint, capsys):
    environment = {"WORLD_SIZE": "2"} if "launcher" in complaint else {}
    with pytest.raises(SystemExit):
        parse(line.split(), environment)
    assert complaint in capsys.readouterr().err


def test_level_is_for_dda_only():
    given = parse_line("all_reduce --backend dda,gloo,dda@torch --level engine")
    assert given.specs == (Spec("dda", "engine"), Spec("gloo"), Spec("dda"))
    assert [str(spec) for spec in given.specs] == ["dda@engine", "gloo", "dda"]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_size_is_that_of_the_larger_buffer(collective):
    kind = COLLECTIVES[collective]
    case = make_case(collective, 4096, 4, dtype_of("float"))
    larger = max(kind.send_parts(4), kind.recv_parts(4)) * case.count * 4
    assert case.size == larger == (0 if collective == "barrier" else 4096)


def test_bus_factors_are_those_of_nccl_tests():
    factors = {name: kind.bus_factor(4) for name, kind in COLLECTIVES.items()}
    assert factors == {
        "all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "broadcast": 1,
        "reduce": 1, "gather": 0.75, "scatter": 0.75, "all_to_all": 0.75, "sendrecv": 1,
        "barrier": 0,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_inputs_reduce_exactly_in_every_order(dtype, op, world):
    """Adding in the dtype itself, in several orders, gives the integer that is expected."""
    case = make_case("all_reduce", 4096, world, dtype, op)
    assert case.has_exact_rows or world * world > dtype.largest
    if not case.has_exact_rows:
        return
    kind = getattr(torch, dtype.torch)
    rows = [torch.from_numpy(case.row(rank)).to(kind) for rank in range(world)]
    assert all(torch.equal(row.long(), torch.from_numpy(case.row(r))) for r, row in enumerate(rows))
    exact = torch.from_numpy(case.reduced())
    functions = {"sum": torch.add, "avg": torch.add, "prod": torch.mul,
                 "min": torch.minimum, "max": torch.maximum}  # fmt: skip
    for order in list(permutations(range(world)))[:6]:
        # float64 and back stands for arithmetic in a dtype that torch does not compute in.
        total = rows[order[0]].double()
        for rank in order[1:]:
            total = functions[op](total, rows[rank].double())
            assert torch.equal(total.to(kind).double(), total)
        if op == "avg":
            total = total / world
        assert torch.equal(total.to(kind).long(), exact)
    assert len(exact.unique()) > 1


class Copying(Peer):
    """A single rank whose collectives copy, or do not do it well."""

    rank, world = 0, 1

    def __init__(self, error=None):
        self.error = error

    def allocate(self, count, dtype):
        return np.zeros(count, dtype.torch)

    def spread(self, row, start, count, dtype):
        return np.resize(np.roll(row, -start), count).astype(dtype.torch)

    def copy(self, target, source):
        target[...] = source

    def count_different(self, array, expected):
        return int((array != expected).sum())

    def bind(self, send, recv, in_place):
        def call():
            if self.error == "idle":
                return
            recv[...] = send
            if self.error == "last":
                recv[-1] += 1

        return call

    def barrier(self):
        pass

    def versions(self):
        return {}


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_check_finds_what_is_wrong(collective):
    case = make_case(collective, 40000, 1, dtype_of("float"))
    forms = FORMS if case.kind.in_place else FORMS[:1]
    for error, wrong in ((None, range(1)), ("last", range(1, 2)), ("idle", range(9000, 10001))):
        peer = Copying(error)
        peer.prepare(case)
        for form in forms:
            if error == "idle" and form == "in_place":
                continue  # with one rank, nothing is to be done in place
            assert peer.check(form) in wrong


def test_times_are_one_for_each_call():
    peer = Copying()
    peer.prepare(make_case("all_reduce", 64, 1, dtype_of("float")))
    times = peer.time("in_place", 5, 1)
    assert len(times) == 5
    assert all(time > 0 for time in times)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_torch_spreads_rows_as_numpy_does(dtype):
    peer = TorchPeer.__new__(TorchPeer)
    row = make_case("all_gather", 64, 2, dtype).row(1)
    got = peer.spread(row, 5000, 3000, dtype)
    assert got.dtype == getattr(torch, dtype.torch)
    assert torch.equal(got.long(), torch.from_numpy(np.resize(np.roll(row, -5000), 3000)))
    other = got.clone()
    assert peer.count_different(other, got) == 0
    other[7] = other[7].float() + 1
    assert peer.count_different(other, got) == 1


def test_torch_knows_every_reduction():
    assert set(OPS) == {"none", *REDUCTIONS}


def measurement(*rounds, wrong=0):
    made = Measurement(3, wrong)
    for time in rounds:
        made.add([[time, time, time], [time / 2, time / 2, time / 2]])
    return made


def test_statistics():
    made = Measurement(4)
    made.add([[1, 1, 1, 1], [1, 1, 1, 5]])
    made.add([[3, 3, 3, 3], [1, 1, 1, 1]])
    made.add([[9, 9, 9, 9], [1, 1, 1, 1]])
    assert made.rounds == [2, 3, 9]  # the slowest rank's mean
    assert made.time == 3
    assert made.percentile(50) == 3
    assert made.percentile(100) == 9


def test_ratio_is_taken_within_rounds():
    first, other = measurement(1, 10, 100), measurement(3, 20, 100)
    assert other.ratio_to(first) == 2


@pytest.fixture
def report():
    given = parse_line("all_reduce -b 64 -e 1M -f 128 --backend dda,gloo --rounds 3")
    made = Report(given, [], {})
    made.specs = list(given.specs)
    for case in given.cases():
        time = 2 + case.size / 1000
        forms = {form: measurement(time, time, time) for form in FORMS}
        slower = {form: measurement(4 * time, 4 * time, 4 * time) for form in FORMS}
        made.add(Line(case, {Spec("dda"): forms, Spec("gloo"): slower}))
    return made


def test_columns_are_those_of_nccl_tests(report, capsys):
    line = report.lines[1]
    capsys.readouterr()
    report.add(line)
    columns = capsys.readouterr().out.split()
    assert columns[:5] == ["8192", "2048", "float", "sum", "-1"]
    assert columns[5:9] == columns[9:13] == ["10.19", "0.80", "0.80", "0"]
    assert columns[13:] == ["10.19", "10.19", "40.77", "4.00"]


def test_missing_figures_read_na(report, capsys):
    line = Line(report.lines[0].case, {}, {Spec("gloo"): "gloo: it is gone"})
    capsys.readouterr()
    report.add(line)
    report.add(line)
    out = capsys.readouterr().out
    assert out.count("N/A") == 2 * 12
    assert out.count("# gloo: it is gone") == 1


def test_wrong_elements_are_counted(report, capsys):
    report.lines[0].measured[Spec("gloo")]["in_place"].wrong = 3
    report.print_footer()
    assert "# Out of bounds values : 3 FAILED" in capsys.readouterr().out
    assert report.as_json()["out_of_bounds"] == {"count": 3, "okay": "false"}


def test_json_and_csv(report, tmp_path):
    report.write_json(str(tmp_path / "r.json"))
    results = json.loads((tmp_path / "r.json").read_text())
    line = results["results"][0]
    assert {"time", "alg_bw", "bus_bw", "nwrong", "p50_us", "p99_us"} <= line["in_place"].keys()
    assert line["peers"]["gloo"]["in_place"]["ratio"] == 4
    assert results["machine"]["cpu"]
    report.write_csv(str(tmp_path / "r.csv"))
    with open(tmp_path / "r.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == CSV_COLUMNS
    assert len(rows) == 3 * 2 * 2
    assert {row["backend"] for row in rows} == {"dda", "gloo"}
    assert all(row["time"] for row in rows)


def test_curves(report, tmp_path):
    curves = curves_of(json.loads(json.dumps(report.as_json())))
    assert set(curves) == {"dda", "gloo"}
    assert [size for size, _, _ in curves["dda"]] == [64, 8192, 2**20]
    pytest.importorskip("matplotlib")
    draw(report.as_json(), str(tmp_path / "r.png"))
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.234, "   1.23"), (12345.678, "12345.7"), (1234567.8, "1234568"), (12345678.9, "1.2e+07")],
)
def test_figures_keep_their_width(value, text):
    assert figure(value, 7) == text


def test_mpi_of_the_environment_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert find_mpi("mpich", str(tmp_path)) is None
    for name in ("bin/mpiexec.hydra", "bin/prterun", "lib/libmpi.so.12"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    mpi = find_mpi("mpich", str(tmp_path))
    assert mpi is not None
    assert mpi.command(3) == [str(tmp_path / "bin/mpiexec.hydra"), "-n", "3"]
    assert mpi.environment()["LD_LIBRARY_PATH"].startswith(str(tmp_path / "lib"))
    assert find_mpi("openmpi", str(tmp_path)) is None  # its library is missing


def test_doctor_names_ranges():
    assert ranges((8, 16, 1024), ("flat", "flat", "tree")) == "flat from 8, tree from 1K"


def test_command_line(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"dda {name}" in out for name in COMMANDS)
    assert main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
