"""Searches the models of the protocol with Spin: the right ones, and those with a planted fault.

A right model is searched to its last state and must have no error. A planted fault must lead to the
error that it is known for: something is read or overwritten at the wrong time (an assertion), or
ranks wait forever (an invalid end state).

Run as a program, prints one line a case and exits with 1 if any came out wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WRONG_TIME = "assertion violated"
STUCK = "invalid end state"


@dataclass(frozen=True)
class Case:
    """A model, the macros it is built with, and the error that must be found, "" for none."""

    model: str
    macros: str
    error: str = ""

    def __str__(self) -> str:
        return f"{self.model} {self.macros}".rstrip()


# Those that take longest come first.
RIGHT = [
    Case("rooted", "RANKS=4"),
    Case("tree", "RANKS=3 TROUBLE"),
    Case("flat", "RANKS=3 TROUBLE"),
    Case("flat", "RANKS=3 MISMATCH"),
    Case("flat", "RANKS=4"),
    Case("tree", "RANKS=4"),
    Case("rooted", "RANKS=2 MORE_CALLS"),
    Case("rooted", "RANKS=3"),
    Case("tree", "RANKS=3 MORE_CALLS"),
    Case("rooted", "RANKS=2 TROUBLE"),
    Case("flat", "RANKS=2 MISMATCH REFUSAL"),
    Case("flat", "RANKS=3 MORE_CALLS"),
    Case("tree", "RANKS=2 MISMATCH REFUSAL"),
    Case("rooted", "RANKS=2 SLOTS=3"),
    Case("tree", "RANKS=2 MORE_CALLS"),
    Case("flat", "RANKS=2 MORE_CALLS"),
    Case("sleep", ""),
]
FAULTS = [
    Case("rooted", "RANKS=3 ROOT_ENTRY_ONLY", STUCK),
    Case("flat", "RANKS=2 ONE_SLOT", WRONG_TIME),
    Case("flat", "RANKS=2 MORE_CALLS SLOT_BY_NUMBER", WRONG_TIME),
    Case("flat", "RANKS=2 ONE_ENTRY", STUCK),
    Case("flat", "RANKS=2 FLAG_FIRST", WRONG_TIME),
    Case("flat", "RANKS=2 RAW_COMPARE", WRONG_TIME),
    Case("flat", "RANKS=2 CALL_IN_STEP", WRONG_TIME),
    Case("flat", "RANKS=2 REFUSAL REFUSE_AT_ONCE", WRONG_TIME),
    Case("flat", "RANKS=2 REFUSAL RUN_AT_ONCE", STUCK),
    Case("flat", "RANKS=3 MISMATCH MISMATCH_AT_ONCE", WRONG_TIME),
    Case("flat", "RANKS=2 TROUBLE DEATH_UNNOTICED", STUCK),
    Case("flat", "RANKS=2 TROUBLE ABORT_UNHEARD", STUCK),
    Case("tree", "RANKS=2 ONE_SLOT", WRONG_TIME),
    Case("tree", "RANKS=2 FLAG_FIRST", WRONG_TIME),
    Case("tree", "RANKS=2 GATHER_AT_ONCE", WRONG_TIME),
    Case("rooted", "RANKS=2 RAW_COMPARE", WRONG_TIME),
    Case("rooted", "RANKS=2 STAGE_AT_ONCE", WRONG_TIME),
    Case("rooted", "RANKS=2 NO_END_RULE", WRONG_TIME),
    Case("sleep", "NO_BARRIER", STUCK),
    Case("sleep", "HEAR_LATE", STUCK),
    Case("sleep", "NO_LAST_LOOK", STUCK),
]
CASES = RIGHT + FAULTS

# Megabytes for states, the deepest path, and seconds for one search: several times what is needed.
MEMORY = 2000
DEPTH = 4_000_000
SECONDS = 240


def missing_tool() -> str:
    """Returns why nothing can be searched here, "" if it can."""
    absent = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    return f"there is no {' and no '.join(absent)}" if absent else ""


def search(case: Case) -> str:
    """Searches the states of a case, up to the first error.

    Returns:
        What the search said.

    Raises:
        RuntimeError: if the model does not compile.
    """
    macros = [f"-D{macro}" for macro in case.macros.split()]
    with tempfile.TemporaryDirectory() as folder:

        def call(*command: str) -> str:
            done = subprocess.run(
                command, cwd=folder, text=True, capture_output=True, timeout=SECONDS, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"{case}: {command[0]} failed\n{done.stdout}{done.stderr}")
            return done.stdout

        call("spin", "-a", *macros, str(HERE / f"{case.model}.pml"))
        options = ["-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY}"]
        call("gcc", *options, "-o", "pan", "pan.c")
        return call("./pan", "-n", "-w22", f"-m{DEPTH}")


def check(case: Case) -> str:
    """Searches a case and compares what was found with what must be.

    Returns:
        A line that tells it.

    Raises:
        AssertionError: if a right model has an error or was not searched to its end, or if a
            planted fault was not found.
        RuntimeError: if the model does not compile.
    """
    said = search(case)
    if case.error:
        assert case.error in said, f"{case}: the planted fault was not found\n{said}"
        return f"{case}: found, {case.error}"
    assert "errors: 0" in said, f"{case}: the protocol has an error\n{said}"
    unfinished = re.search("too small|out of memory|not completed|max.* depth", said)
    assert not unfinished, f"{case}: states were left out\n{said}"
    states = re.search(r"(\d+) states, stored", said)
    assert states, said
    return f"{case}: no error in {int(states[1]):,} states"


def start() -> dict[Case, Future[str]]:
    """Starts to check all cases, two at a time."""
    pool = ThreadPoolExecutor(max_workers=2)
    return {case: pool.submit(check, case) for case in CASES}


def main() -> int:
    """Checks all cases and prints what came of each."""
    missing = missing_tool()
    if missing:
        print(f"model: skipped, {missing}")
        return 0
    failed = 0
    for outcome in start().values():
        try:
            print(outcome.result(), flush=True)
        except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(error, flush=True)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
