"""Measures one case after another on all teams, which take turns.

A machine's speed changes from second to second, so the teams are interleaved: in every *round* each
team times its calls once, and the ratio of two teams is the median of the ratios within a round.
The time of a round is that of its slowest rank, per call; the time of a case is the median over its
rounds. Percentiles are over all calls of all rounds, those of the worst rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from dda.bench.cases import Case
from dda.bench.launch import Team, TeamError
from dda.bench.options import Options, Spec
from dda.bench.peer import FORMS, UnsupportedError

_TRIAL_CALLS = 3
_LIMITS = (3, 2000)  # calls per round


@dataclass
class Measurement:
    """One team's times of one form of a case, in microseconds."""

    iterations: int
    wrong: int | None = None  # elements, over all ranks; None: not checked
    rounds: list[float] = field(default_factory=list)
    calls: list[list[float]] = field(default_factory=list)  # of each rank

    def add(self, by_rank: list[list[float]]) -> None:
        """Adds a round: the times of the calls of each rank."""
        self.rounds.append(max(statistics.fmean(times) for times in by_rank))
        self.calls = self.calls or [[] for _ in by_rank]
        for calls, times in zip(self.calls, by_rank, strict=True):
            calls.extend(times)

    @property
    def time(self) -> float:
        """The time of a call: median over rounds, worst over ranks."""
        return statistics.median(self.rounds)

    def percentile(self, percent: float) -> float:
        """A percentile over all calls, worst over ranks."""
        return max(float(np.percentile(times, percent)) for times in self.calls)

    def ratio_to(self, first: Measurement) -> float:
        """How many times as long as `first` this takes."""
        return statistics.median(a / b for a, b in zip(self.rounds, first.rounds, strict=True))


@dataclass
class Line:
    """A case with what was measured of it: by team, by form."""

    case: Case
    measured: dict[Spec, dict[str, Measurement]]
    notes: dict[Spec, str] = field(default_factory=dict)  # why a team has no figures

    def get(self, spec: Spec, form: str) -> Measurement | None:
        """Returns a measurement, or None if there is none."""
        return self.measured.get(spec, {}).get(form)


def run(options: Options, teams: list[Team], on_step: Callable[[], None]) -> Iterator[Line]:
    """Yields the lines of the table.

    Args:
        options: what to measure.
        teams: who takes part. A team that fails is closed and removed; the line's notes say why.
        on_step: called `steps_per_case` times a case, for a progress bar.
    """
    for case in options.cases():
        yield _run_case(case, options, teams, on_step)


def steps_per_case(options: Options) -> int:
    """How often `run` reports a step for each case."""
    return options.rounds + 1


def _forms(spec: Spec, case: Case) -> list[str]:
    if spec.level == "engine":
        return ["out_of_place"]  # its two buffers are apart
    return list(FORMS if case.kind.in_place else FORMS[:1])


def _run_case(case: Case, options: Options, teams: list[Team], on_step: Callable[[], None]) -> Line:
    line = Line(case, {})

    def attempt(action: Callable[[Team], None]) -> None:
        """Does something with every team that is still in this line."""
        for team in list(teams):
            if team.spec in line.notes:
                continue
            try:
                action(team)
            except UnsupportedError as error:
                line.notes[team.spec] = f"{team.spec}: {first_line(error)}"
            except TeamError as error:
                line.notes[team.spec] = str(error)
                teams.remove(team)
                team.close()
            if team.spec in line.notes:
                line.measured.pop(team.spec, None)

    def set_up(team: Team) -> None:
        team.ask("prepare", case, timeout=options.timeout)
        line.measured[team.spec] = {}
        for form in _forms(team.spec, case):
            measurement = Measurement(options.iterations)
            line.measured[team.spec][form] = measurement
            if team.spec.has_data and options.check and case.has_exact_rows:
                measurement.wrong = 0
                for _ in range(options.check):
                    measurement.wrong += sum(team.ask("check", form, timeout=options.timeout))
            if not options.iterations:
                trial = team.ask(
                    "time", form, _TRIAL_CALLS, options.warmup, timeout=options.timeout
                )
                measurement.iterations = _calls_in(options.round_seconds, trial)

    def play_round(team: Team) -> None:
        for form, measurement in line.measured[team.spec].items():
            measurement.add(
                team.ask(
                    "time",
                    form,
                    measurement.iterations,
                    options.warmup,
                    timeout=options.timeout,
                )
            )

    attempt(set_up)
    on_step()
    for _ in range(options.rounds):
        attempt(play_round)
        on_step()
    return line


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message: what went wrong, without where."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _calls_in(seconds: float, trial: list[list[float]]) -> int:
    """Returns how many calls take about `seconds`, given the times of a few on each rank."""
    fewest, most = _LIMITS
    slowest = max(statistics.median(times) for times in trial)
    return int(min(most, max(fewest, seconds * 1e6 / max(slowest, 1e-3))))
