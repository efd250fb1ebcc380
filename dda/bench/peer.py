"""One rank of one backend, as the worker sees it: buffers, the call, its check and its times.

A case has two buffers, `send` and `recv`. In the out-of-place form they are apart; in the in-place
form one of them is a part of the other, or the same (see `cases.Collective.in_place`). A subclass
says what a buffer is and what the call is; everything else is the same for all backends.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dda.bench.cases import PERIOD, Case, DType, Row

FORMS = ("out_of_place", "in_place")


class UnsupportedError(Exception):
    """The backend has no such call, or not for these elements."""


class Peer(ABC):
    """A rank that makes the calls of one case after another.

    Attributes:
        rank: this process's rank.
        world: the number of ranks.
        case: the case that was prepared last.
    """

    rank: int
    world: int
    case: Case
    _send: Any = None
    _recv: Any = None
    _calls: dict[str, Callable[[], object]]

    @abstractmethod
    def allocate(self, count: int, dtype: DType) -> Any:
        """Returns an array of `count` zeros; raises UnsupportedError for an unknown dtype."""

    @abstractmethod
    def spread(self, row: Row, start: int, count: int, dtype: DType) -> Any:
        """Returns `count` elements of the row repeated for ever, from element `start` on."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """Writes `source` to `target`, an array of the same shape and dtype."""

    @abstractmethod
    def count_different(self, array: Any, expected: Any) -> int:
        """Returns in how many elements two arrays differ."""

    @abstractmethod
    def bind(self, send: Any, recv: Any, in_place: bool) -> Callable[[], object]:
        """Returns a function that performs the case once; raises UnsupportedError."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits until every rank is here."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Returns the versions of what is measured."""

    def threads(self) -> dict[str, int]:
        """Returns how many threads each library that has a number of its own may use here."""
        return {}

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Leaves the group."""

    def prepare(self, case: Case) -> None:
        """Makes the buffers of a case, and its calls."""
        self.case = case
        self._send = self._recv = None  # free the last case's first
        self._calls = {}
        kind = case.kind
        self._send = self.allocate(case.count * kind.send_parts(self.world), case.dtype)
        self._recv = self.allocate(case.count * kind.recv_parts(self.world), case.dtype)
        for form in FORMS if kind.in_place else FORMS[:1]:
            send, recv = self._views(form)
            self._calls[form] = self.bind(send, recv, form == "in_place")

    def _views(self, form: str) -> tuple[Any, Any]:
        """Returns the send and the receive buffer of a form."""
        send, recv = self._send, self._recv
        part = slice(self.rank * self.case.count, (self.rank + 1) * self.case.count)
        if form == "out_of_place":
            return send, recv
        return {
            "whole": lambda: (recv, recv),
            "send": lambda: (recv[part], recv),
            "recv": lambda: (send, send[part]),
        }[self.case.kind.in_place]()

    def result(self, form: str) -> Any:
        """Returns where the case's result is after a call."""
        return self._views(form)[1]

    def check(self, form: str) -> int:
        """Performs the case once, and returns how many elements of this rank are wrong."""
        case = self.case
        self.copy(self._recv, self.allocate(len(self._recv), case.dtype))  # of another form
        self._write(self._views(form)[0], case.inputs(self.rank))
        self.barrier()
        self._calls[form]()
        wrong = 0
        for at, (row, start) in enumerate(case.outputs(self.rank)):
            expected = self.spread(row, start, case.count, case.dtype)
            got = self.result(form)[at * case.count : (at + 1) * case.count]
            wrong += self.count_different(got, expected)
        self.barrier()
        return wrong

    def _write(self, buffer: Any, parts: list[tuple[Row, int]]) -> None:
        count = self.case.count
        for at, (row, start) in enumerate(parts):
            data = self.spread(row, start % PERIOD, count, self.case.dtype)
            self.copy(buffer[at * count : (at + 1) * count], data)

    def time(self, form: str, iterations: int, warmup: int) -> list[float]:
        """Returns the microseconds of each of `iterations` calls, one right behind the other.

        The ranks set out together, from a barrier and `warmup` calls that are not timed.
        """
        call = self._calls[form]
        clock = time.perf_counter_ns
        self.barrier()
        for _ in range(warmup):
            call()
        stamps = [clock()]
        for _ in range(iterations):
            call()
            stamps.append(clock())
        return [(b - a) / 1e3 for a, b in pairwise(stamps)]
