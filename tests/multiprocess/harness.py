"""Real processes as ranks, for tests.

`run_ranks(fn, world, *args)` is what most tests need: it runs `fn(rank, world, *args)` in `world`
processes that form torch.distributed's default group, and returns what the ranks returned. Tests
that kill, stop or delay single ranks use `Ranks` and look at each rank's `Outcome` themselves.

A rank is a fork of a server process that has imported torch and nothing of dda, so starting one
takes milliseconds, it has no threads of its own before `fn`, and it shares nothing with the ranks
of other tests. The ranks meet through a store that the test process serves: it outlives every rank.
Every rank is killed when the test's wall limit is over, and when the test process dies.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import count
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKEND = os.environ.get("DDA_TEST_BACKEND", "dda")


def device() -> torch.device:
    """Where the tensors under test lie: on the CPU, or on this rank's GPU."""
    return torch.device(os.environ.get("TEST_DEVICE", "cpu"))


_HOST = "127.0.0.1"
_PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "numpy",
    "pytest",
    "hypothesis",
]
# It looks for GPUs, and CUDA does not start in a fork of a process that has done so.
_PRELOAD_WITHOUT_GPUS = ["torch._inductor.compile_fx"]
_GRACE = 5.0  # seconds that the other ranks have to end once one has failed
_run_numbers = count()


class RankFailed(AssertionError):  # noqa: N818 (it reads as a test's failure)
    """Ranks failed; the message names each with its traceback."""


@dataclass
class Outcome:
    """How a rank ended: with a value, an error (its traceback), or by a signal."""

    rank: int
    value: Any = None
    error: str | None = None
    exitcode: int | None = None
    stack: str = ""  # where it was when its time was up

    @property
    def ok(self) -> bool:
        """Whether `fn` returned and the process ended cleanly."""
        return self.error is None and self.exitcode == 0

    def describe(self) -> str:
        """Says in words how the rank ended."""
        if self.error is not None:
            return f"rank {self.rank} failed:\n{self.error}"
        if self.exitcode is None:
            return f"rank {self.rank} did not end in time; it was at\n{self.stack}"
        if self.exitcode < 0:
            return f"rank {self.rank} was ended by {signal.Signals(-self.exitcode).name}"
        return f"rank {self.rank} exited with {self.exitcode}"


@dataclass(frozen=True)
class _Job:
    """What a rank's process is told."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    rank: int
    world: int
    backend: str | None
    port: int
    prefix: str
    group_timeout: float
    env: dict[str, str]
    package_dir: str | None
    stack_file: str


class Channel:
    """The rank's line to the test: `tell` on one side is `Ranks.hear` on the other."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe

    def send(self, kind: str, value: Any) -> None:
        """Sends a value by copy (tensors too: no memory is shared with the test)."""
        self._pipe.send_bytes(pickle.dumps((kind, value)))

    def receive(self) -> Any:
        """Waits for the test's next word."""
        return pickle.loads(self._pipe.recv_bytes())


_channel: Channel | None = None


def tell(value: Any) -> None:
    """Called in a rank: sends `value` to the test, which gets it from `Ranks.hear`."""
    assert _channel is not None, "tell is for ranks"
    _channel.send("told", value)


def listen() -> Any:
    """Called in a rank: waits for what the test sends with `Ranks.say`."""
    assert _channel is not None, "listen is for ranks"
    return _channel.receive()


def store_of(port: int, prefix: str, timeout: float) -> dist.Store:
    """Returns a client of the test's store, whose keys start with `prefix`."""
    server = dist.TCPStore(_HOST, port, is_master=False, timeout=timedelta(seconds=timeout))
    return dist.PrefixStore(prefix, server)


def _set_up(job: _Job) -> None:
    """Makes this process the rank that `job` describes."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the tests
    # The faults of a rank are told to the test; its stack is asked for with SIGUSR1.
    faulthandler.register(signal.SIGUSR1, file=open(job.stack_file, "w"))  # noqa: SIM115
    for name in ("DDA_TEST_BACKEND", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        os.environ.pop(name, None)
    os.environ.update(job.env)
    dist.set_debug_level_from_env()  # torch has read it when the server imported torch
    torch.set_num_threads(int(job.env.get("OMP_NUM_THREADS", "1")))
    if device().type == "cuda":
        torch.cuda.set_device(job.rank % torch.cuda.device_count())
        torch.set_default_device("cuda")  # of all tensors that a test makes without saying where
    if job.package_dir is not None:
        sys.path.insert(0, job.package_dir)
    if job.backend is None:
        return
    if "dda" in job.backend:
        importlib.import_module("dda")
    dist.init_process_group(
        job.backend,
        store=store_of(job.port, job.prefix, job.group_timeout),
        rank=job.rank,
        world_size=job.world,
        timeout=timedelta(seconds=job.group_timeout),
    )


def _main(job: _Job, pipe: connection.Connection) -> None:
    """A rank's life."""
    global _channel
    _channel = Channel(pipe)
    try:
        _set_up(job)
        value = job.fn(job.rank, job.world, *job.args)
        _channel.send("value", value)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        _channel.send("error", traceback.format_exc())
        os._exit(1)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Sets environment variables for the length of a with block."""
    old = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(old)


@cache
def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    has_gpus = torch.cuda.is_available()
    context.set_forkserver_preload(_PRELOAD + ([] if has_gpus else _PRELOAD_WITHOUT_GPUS))
    # Ranks import dda themselves, with the environment that the test wants.
    with _environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0", OMP_NUM_THREADS="1"):
        multiprocessing.forkserver.ensure_running()  # type: ignore[attr-defined]
    return context


@cache
def _store() -> dist.TCPStore:
    return dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)


@dataclass
class _Rank:
    process: multiprocessing.process.BaseProcess
    pipe: connection.Connection
    outcome: Outcome
    told: list[Any] = field(default_factory=list)


class Ranks:
    """`world` processes that each run `fn(rank, world, *args)`.

    Leaving the with block kills those that are still there.

    Args:
        fn: a top-level function of a module that the ranks can import.
        world: how many ranks.
        args: what `fn` gets besides its rank and the world size.
        backend: of the default group; None makes no group, `fn` then makes its own with `store_of`.
        group_timeout: the group's timeout in seconds.
        env: environment variables of all ranks, or one dictionary for each rank.
        package_dir: a folder that holds another build of dda.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        world: int,
        *args: Any,
        backend: str | None = BACKEND,
        group_timeout: float = 60,
        env: dict[str, str] | Sequence[dict[str, str]] | None = None,
        package_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._stacks = tempfile.TemporaryDirectory(prefix="dda-stacks-")
        prefix = f"run{next(_run_numbers)}"
        self._ranks: list[_Rank] = []
        for rank in range(world):
            own_env = dict(env if isinstance(env, dict) else env[rank] if env else {})
            own_env["TEST_DEVICE"] = str(device())
            job = _Job(
                fn, args, rank, world, backend, _store().port, prefix, group_timeout, own_env,
                os.fspath(package_dir) if package_dir is not None else None,
                str(self._stack_file(rank)),
            )  # fmt: skip
            here, there = multiprocessing.Pipe()
            process = _context().Process(target=_main, args=(job, there), daemon=True)
            process.start()
            there.close()
            self._ranks.append(_Rank(process, here, Outcome(rank)))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join()
            rank.pipe.close()
        self._stacks.cleanup()

    def pid(self, rank: int) -> int:
        """The process id of a rank."""
        pid = self._ranks[rank].process.pid
        assert pid is not None
        return pid

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Sends a signal (SIGKILL, SIGSTOP, SIGCONT); returns when, on time.monotonic's clock."""
        now = time.monotonic()
        os.kill(self.pid(rank), number)
        return now

    def say(self, rank: int, value: Any = None) -> None:
        """Sends `value` to a rank that calls `listen`."""
        self._ranks[rank].pipe.send_bytes(pickle.dumps(value))

    def hear(self, rank: int, timeout: float = 30) -> Any:
        """Waits for what a rank sends with `tell`; raises RankFailed if it ends instead."""
        deadline = time.monotonic() + timeout
        while not self._ranks[rank].told:
            if not self._listen([rank], deadline):
                raise RankFailed(self.outcome(rank, 0).describe())
        return self._ranks[rank].told.pop(0)

    def outcome(self, rank: int, timeout: float = 30) -> Outcome:
        """Waits until a rank has ended. One that has not by then has no exit code."""
        deadline = time.monotonic() + timeout
        while self._listen([rank], deadline):
            pass
        outcome = self._ranks[rank].outcome
        if outcome.exitcode is None:
            outcome.stack = self._ask_for_stack(rank)
        return outcome

    def join(self, timeout: float, ranks: Sequence[int] | None = None) -> list[Outcome]:
        """Waits for ranks (all by default), and not much longer than for the first that fails."""
        chosen = range(len(self._ranks)) if ranks is None else ranks
        deadline = time.monotonic() + timeout
        while self._listen(chosen, deadline):
            ended = [self._ranks[r].outcome for r in chosen if self._is_done(r)]
            if any(not outcome.ok for outcome in ended):
                deadline = min(deadline, time.monotonic() + _GRACE)
        return [self.outcome(rank, 0) for rank in chosen]

    def _is_done(self, rank: int) -> bool:
        return self._ranks[rank].outcome.exitcode is not None

    def _listen(self, ranks: Sequence[int], deadline: float) -> bool:
        """Takes in the next news of `ranks`; False if all have ended or the time is up."""
        of = {}
        for rank in (self._ranks[r] for r in ranks if not self._is_done(r)):
            of[rank.process.sentinel] = rank
            if not rank.pipe.closed:
                of[rank.pipe] = rank
        if not of:
            return False
        ready = connection.wait(list(of), max(0.0, deadline - time.monotonic()))
        for rank in {id(of[key]): of[key] for key in ready}.values():  # type: ignore[index]
            if not self._take(rank) and rank.process.sentinel in ready:
                rank.process.join()
                rank.outcome.exitcode = rank.process.exitcode
        return bool(ready)

    @staticmethod
    def _take(rank: _Rank) -> bool:
        """Takes one message of a rank; False if there is none."""
        try:
            if rank.pipe.closed or not rank.pipe.poll():
                return False
            kind, value = pickle.loads(rank.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            rank.pipe.close()
            return False
        if kind == "told":
            rank.told.append(value)
        else:
            setattr(rank.outcome, kind, value)
        return True

    def _stack_file(self, rank: int) -> Path:
        return Path(self._stacks.name) / f"rank{rank}"

    def _ask_for_stack(self, rank: int) -> str:
        file = self._stack_file(rank)
        if not file.exists():
            return "(its start)"
        self.signal(rank, signal.SIGUSR1)
        deadline = time.monotonic() + 1
        while not file.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.05)
        return file.read_text() or "(no answer: it is stopped, or in the kernel)"


def run_ranks(
    fn: Callable[..., Any], world: int, *args: Any, timeout: float = 60, **options: Any
) -> list[Any]:
    """Runs `fn(rank, world, *args)` on `world` ranks and returns what they returned, in rank order.

    Args:
        fn: a top-level function of a module that the ranks can import.
        world: how many ranks.
        args: what `fn` gets besides its rank and the world size.
        timeout: the wall limit in seconds, after which all ranks are killed.
        options: see Ranks; the group's timeout is the wall limit unless given.

    Raises:
        RankFailed: naming every rank that failed, with its traceback, or where it hung.
    """
    options.setdefault("group_timeout", timeout)
    with Ranks(fn, world, *args, **options) as ranks:
        outcomes = ranks.join(timeout)
        failed = [outcome for outcome in outcomes if not outcome.ok]
        if failed:
            # The rank that raised says more than those that waited for it.
            failed.sort(key=lambda outcome: outcome.error is None)
            raise RankFailed("\n".join(outcome.describe() for outcome in failed))
        return [outcome.value for outcome in outcomes]
