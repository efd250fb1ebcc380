"""What results depend on: this machine, the versions, the source, the environment."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

# Variables that change what collectives do. No others are recorded: they may hold secrets.
_PREFIXES = (
    "DDA_", "OMP_", "MKL_", "GLOO_", "TORCH_", "NCCL_", "MPICH_", "MPIR_", "OMPI_", "PRTE_", "UCX_",
    "FI_", "KMP_",
)  # fmt: skip


def _output_of(*command: str) -> str:
    """Returns what a program prints, or "" where it is missing or fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe_machine() -> dict[str, str]:
    """Returns the processor, its cores and caches, the memory and the system, in words."""
    found: dict[str, str] = {}

    def collect(fields: list[dict[str, object]]) -> None:
        for entry in fields:
            found[str(entry["field"]).rstrip(":")] = str(entry.get("data"))
            collect(entry.get("children", []))  # type: ignore[arg-type]

    collect(json.loads(_output_of("lscpu", "--json") or '{"lscpu": []}')["lscpu"])
    wanted = {
        "Model name": "cpu", "Socket(s)": "sockets", "Core(s) per socket": "cores_per_socket",
        "Thread(s) per core": "threads_per_core", "L1d cache": "l1d", "L2 cache": "l2",
        "L3 cache": "l3", "NUMA node(s)": "numa_nodes", "Hypervisor vendor": "hypervisor",
    }  # fmt: skip
    machine = {name: found[field] for field, name in wanted.items() if field in found}
    machine.setdefault("cpu", platform.processor() or platform.machine())
    machine["usable_cores"] = str(len(os.sched_getaffinity(0)))
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    machine["memory_gib"] = f"{pages * page / 2**30:.1f}"
    machine["kernel"] = platform.release()
    machine["load"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    return machine


def git_hash() -> str | None:
    """Returns the commit of the checkout that this file is in, with + after changes to it."""
    root = Path(__file__).resolve().parents[2]
    git = ("git", "-C", str(root))
    top = _output_of(*git, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root:
        return None  # installed; or the repository is somebody else's
    commit = _output_of(*git, "rev-parse", "--verify", "HEAD")
    return commit + "+" * bool(_output_of(*git, "status", "--porcelain")) if commit else None


def describe_environment() -> dict[str, str]:
    """Returns the variables that change what collectives do."""
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(_PREFIXES)}
