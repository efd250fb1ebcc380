"""`dda bench`: puts options, launcher, runner and report together."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dda._version import __version__
from dda.bench.launch import Launcher, Team, TeamError
from dda.bench.mpi import find_mpi
from dda.bench.options import MPI_NAMES, Options, Spec, parse
from dda.bench.peer import UnsupportedError
from dda.bench.report import Report
from dda.bench.runner import run, steps_per_case


def resolve_mpi(options: Options) -> Options:
    """Returns the options with "mpi" replaced by the first MPI that is found here."""
    found = next((name for name in MPI_NAMES if find_mpi(name)), MPI_NAMES[0])
    specs = [Spec(found) if spec.backend == "mpi" else spec for spec in options.specs]
    return replace(options, specs=tuple(dict.fromkeys(specs)))


def collect_versions(teams: Sequence[Team], timeout: float) -> dict[str, dict[str, str]]:
    """Asks the teams what they are, and returns the versions of each and of this process."""
    found = {"dda bench": {"version": __version__, "python": platform.python_version()}}
    for team in teams:
        found[str(team.spec)] = team.ask("versions", timeout=timeout)[0]
    return found


@contextmanager
def progress(total: int, text: str) -> Iterator[Any]:
    """Yields a function that moves a bar on standard error on, where that is a terminal."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    # Lines that go to the same terminal must pass through rich, or the bar would cut them.
    with Progress(console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)


def measure(options: Options) -> tuple[Report | None, int]:
    """Measures what the options say, printing the table.

    Returns:
        The report, or None in a process that only serves its rank or where no backend started; and
        the exit status, 1 if a backend did not start, failed, or gave wrong results.
    """
    options = resolve_mpi(options)
    with Launcher(options) as launcher:
        failures = launcher.start(options.specs)
        if not launcher.is_runner:
            launcher.serve()
            return None, 0
        for text in failures.values():
            print(f"dda bench: {text}", file=sys.stderr)
        teams = launcher.teams
        if not teams:
            return None, 1
        try:
            versions = collect_versions(teams, options.timeout)
        except (TeamError, UnsupportedError) as error:
            print(f"dda bench: {error}", file=sys.stderr)
            return None, 1
        started = len(teams)
        report = Report(options, teams, versions)
        report.print_header()
        total = len(list(options.cases())) * steps_per_case(options)
        with progress(total, options.collective) as on_step:
            for line in run(options, teams, on_step):
                report.add(line)
        report.print_footer()
        # What a peer cannot do (a dtype of MPI, say) is a note; what dda cannot do is a failure.
        missing = any(spec.backend == "dda" for line in report.lines for spec in line.notes)
        failed = bool(failures or report.wrong or missing or len(teams) < started)
        return report, int(failed)


def main(arguments: Sequence[str]) -> int:
    """Runs `dda bench` with its arguments; returns the exit status."""
    options = parse(arguments)
    report, status = measure(options)
    if report is not None and options.json:
        report.write_json(options.json)
    if report is not None and options.csv:
        report.write_csv(options.csv)
    return status
