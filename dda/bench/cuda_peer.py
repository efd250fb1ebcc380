"""torch.distributed's calls on GPUs, one rank a process.

Eager, a call costs what the host takes to issue it or the device takes to do it, whichever is more:
the ranks issue calls without a pause, and the time runs until the device is through. With a graph,
chains of `graph` and of three times as many calls are captured, and the time of a call is the slope
between them, so that what a replay costs once does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from dda.bench.cases import Case, DType, Row
from dda.bench.options import Spec
from dda.bench.torch_peer import TorchPeer

_LEAST_REPLAYS = 5  # in a round: one alone may catch a rank that comes late


class CudaPeer(TorchPeer):
    """A rank of torch's default group whose buffers are on its GPU."""

    def __init__(self, spec: Spec, algorithm: str, symmetric: bool, graph: int) -> None:
        super().__init__(spec, algorithm, symmetric)
        self.graph = graph
        self._chains: dict[str, tuple[torch.cuda.CUDAGraph, ...]] = {}
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        if spec.backend == "dda":
            import dda

            dda.warmup(device="cuda")

    def versions(self) -> dict[str, str]:
        """Returns the versions of torch, CUDA and the backend."""
        found = {**super().versions(), "cuda": str(torch.version.cuda)}
        found["gpu"] = torch.cuda.get_device_name()
        if self.spec.backend == "nccl":
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found

    def explain(self, collective: str, sizes: Any) -> list[str]:
        """Returns the algorithm that dda takes for each size in bytes of a rank's input."""
        import dda

        return [dda.explain(collective, size, device="cuda").algorithm for size in sizes]

    def prepare(self, case: Case) -> None:
        """Makes the buffers of a case and its calls, and forgets the last case's graphs."""
        self._chains = {}
        super().prepare(case)

    def allocate(self, count: int, dtype: DType) -> Any:
        """Returns zeros on the GPU."""
        if self.symmetric:
            import dda

            return dda.empty(count, dtype=getattr(torch, dtype.torch), device="cuda")
        return torch.zeros(count * dtype.size, dtype=torch.uint8, device="cuda").view(
            getattr(torch, dtype.torch)
        )

    def spread(self, row: Row, start: int, count: int, dtype: DType) -> Any:
        """Returns a stretch of the row on the GPU."""
        return super().spread(row, start, count, dtype).cuda()

    def barrier(self) -> None:
        """Waits until every rank and its GPU are here."""
        super().barrier()
        torch.cuda.synchronize()

    def time(self, form: str, iterations: int, warmup: int) -> list[float]:
        """Returns microseconds a call: one figure, or one a replay of the graphs."""
        call = self._calls[form]
        if self.graph:
            replays = max(_LEAST_REPLAYS, iterations // (4 * self.graph))
            return self._time_graphs(form, call, replays)
        for _ in range(warmup):
            call()
        self.barrier()
        start = time.perf_counter_ns()
        for _ in range(iterations):
            call()
        torch.cuda.synchronize()
        return [(time.perf_counter_ns() - start) / 1e3 / iterations]

    def _time_graphs(self, form: str, call: Callable[[], object], replays: int) -> list[float]:
        if form not in self._chains:
            self._chains[form] = (
                self._capture(call, self.graph),
                self._capture(call, 3 * self.graph),
            )
        short, long = self._chains[form]
        slopes = []
        for _ in range(replays):
            self.barrier()
            slopes.append((self._replay(long) - self._replay(short)) / (2 * self.graph))
        return slopes

    def _capture(self, call: Callable[[], object], length: int) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()  # what is made once is made before the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(length):
                call()
        graph.replay()
        self.barrier()
        return graph

    def _replay(self, graph: torch.cuda.CUDAGraph) -> float:
        start, end = self._events
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3
