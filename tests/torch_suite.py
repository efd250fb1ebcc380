"""Runs torch's own distributed tests, which ship in the torch wheel, against a backend.

    python tests/torch_suite.py --world 3 --json dda.json        # all of them, half an hour
    python tests/torch_suite.py --list tests/torch_suite_ci.txt  # those that CI runs
    python tests/torch_suite.py --backend gloo --json gloo.json
    python tests/torch_suite.py --compare gloo.json dda.json     # exits with 1 if dda is worse

torch's tests skip what they do not expect a backend to do, so they are told that they test gloo,
and each process group that they ask for is made with the backend under test instead. The tests in
tests/torch_suite_allow.txt may fail, each for the reason that stands behind it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BELIEVED = "gloo"
ALLOWED = Path(__file__).with_name("torch_suite_allow.txt")
IN_CI = Path(__file__).with_name("torch_suite_ci.txt")
LIMIT_S = 150
MAKERS = ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration")


def read_names(path: Path) -> list[str]:
    """Returns the tests named in a file: one a line, with a comment behind a #."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def substitute(backend: str) -> None:
    """Makes torch.distributed create `backend` wherever it is asked for BELIEVED."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    def swap(value: Any) -> Any:
        return backend if isinstance(value, str) and value.lower() == BELIEVED else value

    def wrap(make: Any) -> Any:
        @functools.wraps(make)
        def call(*args: Any, **kwargs: Any) -> Any:
            named = {name: swap(value) for name, value in kwargs.items()}
            return make(*[swap(value) for value in args], **named)

        return call

    for name in MAKERS:
        wrapped = wrap(getattr(distributed_c10d, name))
        setattr(distributed_c10d, name, wrapped)
        setattr(dist, name, wrapped)


def load_suite(backend: str) -> type[unittest.TestCase]:
    """Returns torch's test class, whose tests spawn their ranks by themselves."""
    if backend != BELIEVED:
        substitute(backend)
    from torch.testing._internal.distributed import distributed_test as torchs

    class TorchSuite(torchs.TestDistBackend, torchs.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    TorchSuite.__qualname__ = "TorchSuite"
    return TorchSuite


def run_one(test: str, backend: str, world: int) -> tuple[str, str]:
    """Runs a test in a process of its own; returns its outcome and the last error printed."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("barrier", "test_dir"):  # torch's tests meet there
            os.makedirs(os.path.join(folder, name))
        environment = {
            **os.environ,
            "BACKEND": BELIEVED,
            "SUITE_BACKEND": backend,
            "WORLD_SIZE": str(world),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "--child", test]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return "hang", f"no end after {LIMIT_S} s"
    outcome = done.stdout.strip().splitlines()[-1:] or ["crash"]
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    return outcome[0], errors[-1][:200] if errors else ""


# In the process of a test. Its ranks are new processes that import this file to unpickle the test:
# they must find its class here.
if "SUITE_BACKEND" in os.environ:
    TorchSuite = load_suite(os.environ["SUITE_BACKEND"])


def run_child(test: str) -> None:
    """Runs one test here and prints its outcome as the last line."""
    suite = unittest.TestSuite([TorchSuite(test)])
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    print("skip" if result.skipped else "pass" if result.wasSuccessful() else "fail")


def all_tests() -> list[str]:
    """Returns the names of torch's tests."""
    program = "import tests.torch_suite as s, unittest; " + (
        "print(*unittest.TestLoader().getTestCaseNames(s.load_suite('gloo')))"
    )
    environment = {**os.environ, "BACKEND": BELIEVED, "WORLD_SIZE": "2", "TEMP_DIR": "/tmp"}
    root = Path(__file__).resolve().parent.parent
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return printed.stdout.split()


def compare(reference: dict[str, list[str]], candidate: dict[str, list[str]]) -> int:
    """Prints the tests that pass with the reference only; returns 1 if one is not allowed to."""
    allowed = set(read_names(ALLOWED))
    passed = [test for test, (outcome, _) in reference.items() if outcome == "pass"]
    worse = [test for test in passed if test in candidate and candidate[test][0] != "pass"]
    for test in worse:
        word = "allowed" if test in allowed else "LOST"
        print(f"{word:8}{test}: {': '.join(candidate[test])}")
    missing = sum(test not in candidate for test in passed)
    print(f"of {len(passed)} tests, {len(worse)} are lost and {missing} were not run")
    return int(bool(set(worse) - allowed))


def main() -> int:
    """Runs tests or compares two runs; returns 1 if a test failed that may not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="dda")
    parser.add_argument("--world", type=int, default=3, help="ranks (default 3)")
    parser.add_argument("--only", nargs="*", default=[], help="names of tests")
    parser.add_argument("--list", type=Path, help="a file with names of tests")
    parser.add_argument("--jobs", type=int, default=1, help="tests at a time (default 1)")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("REFERENCE", "CANDIDATE"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_child(given.child)
        return 0
    if given.compare:
        return compare(*(json.loads(path.read_text()) for path in given.compare))
    tests = [*given.only, *(read_names(given.list) if given.list else [])] or all_tests()
    outcomes: dict[str, tuple[str, str]] = {}
    with ThreadPoolExecutor(given.jobs) as pool:
        results = pool.map(lambda test: run_one(test, given.backend, given.world), tests)
        for test, outcome in zip(tests, results, strict=True):
            outcomes[test] = outcome
            print(f"{outcome[0]:6} {test} {outcome[1]}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(outcomes, indent=1) + "\n")
    bad = {test for test, (outcome, _) in outcomes.items() if outcome not in ("pass", "skip")}
    return int(bool(bad - set(read_names(ALLOWED))))


if __name__ == "__main__":
    sys.exit(main())
