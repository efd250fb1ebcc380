"""What `dda bench` prints and writes.

The lines that nccl-tests prints are there as it prints them, so that what reads its output reads
this; they show the first backend. Behind them stand p50 and p99 of the form that torch.distributed
is called in, and for every other backend its time in that form, and its ratio to the first.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dda.bench.launch import Team
from dda.bench.machine import describe_environment, describe_machine, git_hash
from dda.bench.options import Options, Spec
from dda.bench.peer import FORMS
from dda.bench.runner import Line, Measurement

_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
CSV_COLUMNS = [
    "collective", "size", "count", "type", "redop", "root", "backend", "form", "time", "alg_bw",
    "bus_bw", "nwrong", "p50_us", "p99_us", "min_us", "max_us", "iterations", "ratio",
]  # fmt: skip


def figure(value: float, width: int) -> str:
    """Returns a number with two decimals, or as many as fit into `width`."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}"


def bandwidths(line: Line, measurement: Measurement) -> tuple[float, float]:
    """Returns algorithm and bus bandwidth in GB/s."""
    algorithm = line.case.size / (measurement.time * 1e3)
    return algorithm, algorithm * line.case.kind.bus_factor(line.case.world)


class Report:
    """Collects lines, prints each as it comes, and writes them all in the end."""

    def __init__(
        self, options: Options, teams: Sequence[Team], versions: dict[str, dict[str, str]]
    ) -> None:
        self.options = options
        self.versions = versions
        self.specs = [spec for spec in options.specs if spec in {team.spec for team in teams}]
        self.devices = [
            {
                "rank": rank,
                "group": 0,
                "pid": pid,
                "hostname": host,
                "backend": str(team.spec),
                "threads": threads,
            }
            for team in teams
            for rank, (pid, host, threads) in sorted(team.places.items())
        ]
        self.lines: list[Line] = []
        self.notes: list[str] = []
        self.start = datetime.now().strftime(_TIME_FORMAT)
        self.machine = describe_machine()

    def print_header(self) -> None:
        """Prints what stands above the table."""
        o = self.options
        by_bytes = len(o.sizes) > 2 and o.sizes[1] - o.sizes[0] == o.sizes[2] - o.sizes[1]
        step = (
            f"{o.sizes[1] - o.sizes[0]}(bytes)"
            if by_bytes
            else f"{o.sizes[1] // max(1, o.sizes[0])}(factor)"
            if len(o.sizes) > 1
            else "1(factor)"
        )
        for name, versions in self.versions.items():
            print(f"# {name} {' '.join(f'{k}={v}' for k, v in versions.items())}")
        print(f"# Collective test starting: {o.collective}")
        print(
            f"# nThread 1 nGpus {o.world} minBytes {o.sizes[0]} maxBytes {o.sizes[-1]} "
            f"step: {step} warmup iters: {o.warmup} iters: {o.iterations or 'auto'} agg iters: 1 "
            f"validation: {o.check} graph: {o.graph}"
        )
        print(
            f"# rounds: {o.rounds} algorithm: {o.algorithm} symmetric: {int(o.symmetric)} "
            f"device: {o.device}"
        )
        print("#\n# Using devices")
        for d in self.devices:
            print(
                f"#  Rank {d['rank']:2d} Group {d['group']:2d} Pid {d['pid']:6d} on "
                f"{d['hostname']:>10} device {d['rank']:2d} [{d['backend']}] {self.machine['cpu']}"
            )
        first, *others = self.specs
        left = f"{'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
        names = "".join(f"  {str(spec)[:17]:>17}" for spec in others)
        half = "  {:>7}  {:>6}  {:>6}  {:>6}"
        print(f"#\n# {left}  {'out-of-place':^31}  {'in-place':^31}  {str(first)[:16]:>16}{names}")
        titles = half.format("time", "algbw", "busbw", "#wrong")
        units = half.format("(us)", "(GB/s)", "(GB/s)", "")
        extra = f"  {'p50':>7}  {'p99':>7}" + f"  {'time':>8}  {'ratio':>7}" * len(others)
        extra_units = f"  {'(us)':>7}  {'(us)':>7}" + f"  {'(us)':>8}  {'':>7}" * len(others)
        columns = f"{'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
        print(f"# {columns}{titles}{titles}{extra}")
        columns = f"{'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
        print(f"# {columns}{units}{units}{extra_units}", flush=True)

    def add(self, line: Line) -> None:
        """Takes in a line and prints it; reasons for missing figures are printed once."""
        self.lines.append(line)
        first, *others = self.specs
        case = line.case
        text = (
            f"{case.size:12d}  {case.count:12d}  {case.dtype.name:>8}  {case.op:>6}  {case.root:6d}"
        )
        for form in FORMS:
            text += self._half(line, line.get(first, form))
        form = self.compared_form(line)
        best = line.get(first, form)
        p50, p99 = (figure(best.percentile(p), 7) if best else "N/A" for p in (50, 99))
        text += f"  {p50:>7}  {p99:>7}"
        for spec in others:
            other = line.get(spec, form)
            time = figure(other.time, 8) if other else "N/A"
            ratio = figure(other.ratio_to(best), 7) if other and best else "N/A"
            text += f"  {time:>8}  {ratio:>7}"
        print(text, flush=True)
        for note in line.notes.values():
            self.note(note)
        if self.options.check and not case.has_exact_rows:
            self.note(
                f"not checked: {case.op} of {case.dtype.name} over {case.world} ranks has no exact "
                "input"
            )

    def compared_form(self, line: Line) -> str:
        """Returns the form that is compared: the usual one, or the only one that all have."""
        engine = any(spec.level == "engine" for spec in self.specs)
        return "out_of_place" if engine else line.case.kind.usual

    def _half(self, line: Line, measurement: Measurement | None) -> str:
        if measurement is None:
            return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
        algorithm, bus = bandwidths(line, measurement)
        wrong = "N/A" if measurement.wrong is None else f"{measurement.wrong:g}"
        time = figure(measurement.time, 7)
        return f"  {time:>7}  {figure(algorithm, 6)}  {figure(bus, 6)}  {wrong:>6}"

    def note(self, text: str) -> None:
        """Prints a remark, unless it has been printed."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"# {text}", flush=True)

    @property
    def wrong(self) -> int:
        """How many elements were wrong, over all backends."""
        return sum(m.wrong or 0 for _, _, _, m in self._measurements())

    @property
    def average_bandwidth(self) -> float:
        """The first backend's bus bandwidth in GB/s, averaged over lines and forms."""
        found = [
            bandwidths(line, m)[1]
            for line, spec, _, m in self._measurements()
            if spec == self.specs[0]
        ]
        return sum(found) / len(found) if found else 0.0

    def _measurements(self) -> Iterator[tuple[Line, Spec, str, Measurement]]:
        for line in self.lines:
            for spec, forms in line.measured.items():
                for form, measurement in forms.items():
                    yield line, spec, form, measurement

    def print_footer(self) -> None:
        """Prints what stands below the table."""
        print(f"# {'Out of bounds values':<20} : {self.wrong} {'FAILED' if self.wrong else 'OK'}")
        print(f"# {'Avg bus bandwidth':<20} : {self.average_bandwidth:g} ")
        print(f"#\n# Collective test concluded: {self.options.collective}", flush=True)

    def _record(self, line: Line, spec: Spec, form: str) -> dict[str, Any] | None:
        """Returns a measurement under the names that nccl-tests uses, times in microseconds."""
        m = line.get(spec, form)
        if m is None:
            return None
        algorithm, bus = bandwidths(line, m)
        first = line.get(self.specs[0], form)
        return {
            "time": m.time,
            "alg_bw": algorithm,
            "bus_bw": bus,
            "nwrong": m.wrong,
            "p50_us": m.percentile(50),
            "p99_us": m.percentile(99),
            "min_us": m.percentile(0),
            "max_us": m.percentile(100),
            "rounds_us": m.rounds,
            "iterations": m.iterations,
            "ratio": m.ratio_to(first) if first else None,
        }

    def _line_record(self, line: Line) -> dict[str, Any]:
        case = line.case
        first, *others = self.specs
        return {
            "experiment_name": case.collective,
            "size": case.size,
            "count": case.count,
            "type": case.dtype.name,
            "redop": case.op,
            "root": str(case.root),
            "backend": str(first),
            **{form: self._record(line, first, form) for form in FORMS},
            "compared_form": self.compared_form(line),
            "peers": {
                str(spec): {form: self._record(line, spec, form) for form in FORMS}
                for spec in others
            },
            "notes": {str(spec): note for spec, note in line.notes.items()},
        }

    def as_json(self) -> dict[str, Any]:
        """Returns everything, under the names that nccl-tests uses where it has one."""
        o = self.options
        return {
            "version": 2,
            "start_time": self.start,
            "end_time": datetime.now().strftime(_TIME_FORMAT),
            "args": ["dda", "bench", *o.arguments],
            "env": [f"{name}={value}" for name, value in describe_environment().items()],
            "versions": self.versions,
            "git": git_hash(),
            "machine": self.machine,
            "config": {
                "nthreads": 1,
                "ngpus": o.world,
                "minimum_bytes": o.sizes[0],
                "maximum_bytes": o.sizes[-1],
                "warmup_iters": o.warmup,
                "iterations": o.iterations,
                "aggregated_iterations": 1,
                "validation": o.check,
                "graph": 0,
                "rounds": o.rounds,
                "algorithm": o.algorithm,
                "symmetric": o.symmetric,
                "backends": [str(spec) for spec in self.specs],
                "devices": self.devices,
            },
            "results": [self._line_record(line) for line in self.lines],
            "out_of_bounds": {"count": self.wrong, "okay": str(not self.wrong).lower()},
            "average_bus_bandwidth": {"bandwidth": self.average_bandwidth, "okay": "unchecked"},
            "errors": self.notes,
        }

    def write_json(self, path: str) -> None:
        """Writes `as_json` to a file."""
        Path(path).write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def write_csv(self, path: str) -> None:
        """Writes one row for each backend and form of each line."""
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, CSV_COLUMNS, extrasaction="ignore")
            writer.writeheader()
            for line, spec, form, _ in self._measurements():
                record = self._record(line, spec, form) or {}
                common = self._line_record(line)
                writer.writerow(
                    {
                        **common,
                        "collective": line.case.collective,
                        **record,
                        "backend": str(spec),
                        "form": form,
                    }
                )
