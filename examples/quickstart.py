"""Two ranks add up a tensor, through torch.distributed and through dda's own function."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import dda


def run(rank: int, ranks: int, path: str) -> None:
    """What each rank does: with torchrun, this would be the whole program."""
    dist.init_process_group("dda", init_method=f"file://{path}", rank=rank, world_size=ranks)

    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(x)  # in place, as with any other backend
    y = dda.all_reduce(torch.arange(4.0) * rank, op="max")  # returns a new tensor
    print(f"rank {rank}: {x.tolist()} {y.tolist()}")
    if rank == 0:
        print(dda.explain("all_reduce", nbytes=64 << 20))

    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(2, os.path.join(folder, "store")), nprocs=2)  # type: ignore[attr-defined]
