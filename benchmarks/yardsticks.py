"""Measures the figures that dda must reach on CPUs, in one run, and says which are met.

    python benchmarks/yardsticks.py                   # all; some minutes on an idle machine
    python benchmarks/yardsticks.py --only all_reduce

dda is measured at its three levels beside gloo, MPICH and Open MPI, and the teams take turns in
every round (see dda.bench.runner), so every figure below is a ratio or a difference within one run.
What the engine is held against, the *floors*, is measured between the collectives of the same run.
Results go to benchmarks/results/cpu-DATE.json and to a table beside it, cpu-DATE.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dda._load import extension
from dda.bench.command import collect_versions
from dda.bench.launch import Launcher
from dda.bench.machine import describe_machine
from dda.bench.options import Options, Spec, size_text
from dda.bench.report import Report
from dda.bench.runner import Line, run

DDA, ENGINE, DISPATCH = Spec("dda"), Spec("dda", "engine"), Spec("dda", "dispatch")
GLOO, MPIS = Spec("gloo"), (Spec("mpich"), Spec("openmpi"))
TWO_RANKS = (DDA, ENGINE, DISPATCH, GLOO, *MPIS)
K, M = 2**10, 2**20
SIZES = (64, K, 4 * K, 16 * K, 64 * K, 256 * K, M, 4 * M, 16 * M, 64 * M)
OVER_GLOO = {64: 80, 64 * K: 40, M: 6, 64 * M: 5}  # all_reduce
OTHERS = ("all_to_all", "all_gather", "reduce_scatter", "broadcast")


@dataclass
class Yardstick:
    """One figure: what was measured, and what is asked.

    `by_p50` is the same figure from the medians of single calls. It has no target: where it differs
    much from `measured`, the machine was busy with something else.
    """

    name: str
    measured: float | None
    by_p50: float | None
    target: float
    at_most: bool = False  # whether the target is a limit; else it is to be reached
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether the figure is reached; one that could not be measured is not."""
        if self.measured is None:
            return False
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    def row(self) -> str:
        """Returns the line of the table."""
        measured = "not measured" if self.measured is None else f"{self.measured:.3g} {self.unit}"
        p50 = "" if self.by_p50 is None else f"{self.by_p50:.3g}"
        sign = "≤" if self.at_most else "≥"
        met = "met" if self.met else "**not met**"
        return (
            f"| {self.name} | {sign} {self.target:.3g} {self.unit} | {measured} | {p50} | {met} |"
        )


def compare(name: str, line: Line, slow: Spec, fast: Spec, form: str, target: float) -> Yardstick:
    """Returns how many times as long as `fast` the backend `slow` takes."""
    a, b = line.get(slow, form), line.get(fast, form)
    if a is None or b is None:
        return Yardstick(name, None, None, target)
    return Yardstick(name, a.ratio_to(b), a.percentile(50) / b.percentile(50), target)


def over_peers(line: Line) -> Iterator[Yardstick]:
    """Yields the figures of one collective and size at two ranks."""
    collective, size, form = line.case.collective, line.case.size, line.case.kind.usual
    name = f"{collective} {size_text(size)}"
    is_all_reduce = collective == "all_reduce"
    wanted = OVER_GLOO.get(size) if is_all_reduce else 20 if size <= 64 * K else None
    if wanted is not None:
        yield compare(f"{name}, torch, gloo / dda", line, GLOO, DDA, form, wanted)
    for mpi in MPIS:
        if size >= (64 * K if is_all_reduce else 256 * K):
            share = 0.95 if collective == "broadcast" else 1.0
            yield compare(f"{name}, torch, {mpi} / dda", line, mpi, DDA, form, share)
        yield compare(f"{name}, engine, {mpi} / dda", line, mpi, ENGINE, "out_of_place", 1.0)


def over_floors(lines: dict[int, Line], floors: dict[str, float]) -> Iterator[Yardstick]:
    """Yields the figures of all_reduce in the engine, and what torch's way to it costs."""
    flag, read, add = (floors[f"{name}_us"] for name in ("flag", "read_64k", "add_64m"))
    for size, limit, what in (
        (64, 2.5 * flag, "2.5 flags"),
        (64 * K, 7 * flag + 1.5 * read, "7 flags + 1.5 reads of 64K"),
        (64 * M, 2.5 * add, "2.5 additions of 64M"),
    ):
        engine = lines[size].get(ENGINE, "out_of_place")
        name = f"all_reduce {size_text(size)}, engine, {what}"
        time, p50 = (engine.time, engine.percentile(50)) if engine else (None, None)
        yield Yardstick(name, time, p50, limit, True, "µs")
    for size in (64, 4 * K, 64 * K):
        torch, dispatch = (lines[size].get(spec, "in_place") for spec in (DDA, DISPATCH))
        engine = lines[size].get(ENGINE, "out_of_place")
        added, p50 = None, None
        if torch and dispatch and engine:
            rounds = zip(torch.rounds, dispatch.rounds, engine.rounds, strict=True)
            added = statistics.median(t - d - e for t, d, e in rounds)
            p50 = torch.percentile(50) - dispatch.percentile(50) - engine.percentile(50)
        name = f"all_reduce {size_text(size)}, torch - engine - dispatch"
        yield Yardstick(name, added, p50, 3.0, True, "µs")


def measure(
    world: int, specs: tuple[Spec, ...], collectives: tuple[str, ...], rounds: int
) -> tuple[list[Report], list[dict[str, float]]]:
    """Measures collectives at every size; returns a report for each, and the floors in between."""
    reports, floors = [], []
    with Launcher(Options("all_reduce", SIZES, world, specs, rounds=rounds)) as launcher:
        for text in launcher.start(specs).values():
            print(f"yardsticks: {text}", file=sys.stderr)
        teams = launcher.teams
        versions = collect_versions(teams, 60)
        for collective in collectives:
            options = Options(collective, SIZES, world, specs, rounds=rounds)
            report = Report(options, teams, versions)
            report.print_header()
            floors.append(extension().floors())
            for line in run(options, teams, lambda: None):
                report.add(line)
            report.print_footer()
            reports.append(report)
        floors.append(extension().floors())
    return reports, floors


def judge(two: list[Report], eight: list[Report], floors: dict[str, float]) -> Iterator[Yardstick]:
    """Yields all yardsticks, given the reports at two and at eight ranks."""
    for report in two:
        lines = {line.case.size: line for line in report.lines}
        for line in report.lines:
            yield from over_peers(line)
        if report.options.collective == "all_reduce":
            yield from over_floors(lines, floors)
    for report in eight:
        for line in report.lines:
            name = f"{line.case.collective} {size_text(line.case.size)}, 8 ranks, gloo / dda"
            yield compare(name, line, GLOO, DDA, line.case.kind.usual, 1.0)
    wrong = sum(report.wrong for report in (*two, *eight))
    yield Yardstick("wrong elements, all backends", wrong, None, 0, True, "elements")


def table(sticks: list[Yardstick], floors: dict[str, float], machine: dict[str, Any]) -> str:
    """Returns the results as Markdown."""
    met = sum(stick.met for stick in sticks)
    facts = ", ".join(f"{name} {value:.3g}" for name, value in floors.items())
    return "\n".join(
        [
            f"# Yardsticks on CPU, {date.today()}",
            "",
            f"{machine['cpu']}, {machine['usable_cores']} cores, load {machine['load']} at the "
            f"start. Floors in µs: {facts}. {met} of {len(sticks)} met. Written by "
            "benchmarks/yardsticks.py; the JSON file beside this one has every time.",
            "",
            "| what | target | measured | by p50 | |",
            "| --- | --- | --- | --- | --- |",
            *(stick.row() for stick in sticks),
            "",
        ]
    )


def main() -> int:
    """Measures, writes both files, and returns 1 if a figure is not met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=("all_reduce", *OTHERS))
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    collectives = tuple(given.only or ("all_reduce", *OTHERS))
    machine = describe_machine()
    two, samples = measure(2, TWO_RANKS, collectives, given.rounds)
    eight, _ = measure(8, (DDA, GLOO), collectives, max(3, given.rounds // 3))
    floors = {name: statistics.median(s[name] for s in samples) for name in samples[0]}
    sticks = list(judge(two, eight, floors))
    stem = given.output / f"cpu-{date.today()}"
    record = {
        "machine": machine,
        "floors": {"median": floors, "samples": samples},
        "yardsticks": [{**asdict(stick), "met": stick.met} for stick in sticks],
        "runs": [report.as_json() for report in (*two, *eight)],
    }
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    text = table(sticks, floors, machine)
    stem.with_suffix(".md").write_text(text)
    print(text)
    return int(not all(stick.met for stick in sticks))


if __name__ == "__main__":
    sys.exit(main())
