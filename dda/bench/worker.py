"""The process of one rank of one backend: it does what the runner asks, and sleeps in between.

Run as `python -m dda.bench.worker JOB SPEC [RANK]`. JOB is a file that `launch` wrote; MPI knows
the rank itself. A request is (method of the peer, arguments), an answer ("ok", value) or ("error",
text). The process ends when the runner hangs up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from dda.bench.options import Spec
from dda.bench.peer import Peer, UnsupportedError

_PEER_METHODS = {"prepare", "check", "time", "versions", "explain"}


def make_peer(job: dict[str, Any], spec: Spec, rank: int) -> Peer:
    """Joins the group of the job's ranks, and returns this rank of it."""
    if spec.is_mpi:
        from dda.bench.mpi_peer import MpiPeer

        return MpiPeer()
    from torch.distributed import PrefixStore, TCPStore

    from dda.bench.torch_peer import make_torch_peer

    host, port = job["store"]
    timeout = timedelta(seconds=job["timeout"])
    store = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    return make_torch_peer(
        spec,
        PrefixStore(f"dda-bench/{spec}", store),
        rank,
        job["world"],
        timeout=job["timeout"],
        algorithm=job["algorithm"],
        symmetric=job["symmetric"],
        device=job["device"],
        graph=job["graph"],
    )


def main(arguments: list[str]) -> None:
    """Serves until the runner hangs up."""
    job = json.loads(Path(arguments[0]).read_text())
    backend, _, level = arguments[1].partition("@")
    spec = Spec(backend, level or "torch")
    peer = make_peer(job, spec, int(arguments[2]) if len(arguments) > 2 else -1)
    connection = Client(tuple(job["address"]), authkey=bytes.fromhex(job["key"]))
    place = (os.getpid(), socket.gethostname(), peer.threads())
    connection.send((str(spec), peer.rank, place))
    while True:
        try:
            method, values = connection.recv()
        except EOFError:
            break
        try:
            if method not in _PEER_METHODS:
                raise ValueError(f"unknown request {method!r}")
            answer = ("ok", getattr(peer, method)(*values))
        except UnsupportedError as error:
            answer = ("error", str(error))
        except Exception as error:
            answer = ("error", f"{type(error).__name__}: {error}")
        connection.send(answer)
    peer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
