"""Which MPI libraries this machine has, and how each starts its ranks.

MPICH and Open MPI install as packages into a Python environment (the extra "bench" names them),
side by side: their libraries have different names, and so have their own launchers, while `mpiexec`
belongs to the one installed last. An environment's MPI comes before the system's.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}
LAUNCHERS = {
    "mpich": [["mpiexec.hydra"], ["mpiexec.mpich"]],
    "openmpi": [["prterun", "--personality", "ompi"], ["mpiexec.openmpi"], ["orterun"]],
}
# More ranks than cores are allowed, and no rank is bound: ranks of other backends are not either.
OPTIONS = {"mpich": [], "openmpi": ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]}


@dataclass(frozen=True)
class Mpi:
    """An MPI: its name, the command that starts ranks, and where its library lies ("": system)."""

    name: str
    launcher: tuple[str, ...]
    library_dir: str

    def command(self, world: int) -> list[str]:
        """Returns the command line that starts `world` ranks of what is appended to it."""
        root = ["--allow-run-as-root"] if self.name == "openmpi" and os.geteuid() == 0 else []
        return [*self.launcher, *root, *OPTIONS[self.name], "-n", str(world)]

    def environment(self) -> dict[str, str]:
        """Returns the variables with which mpi4py finds this library and no other."""
        variables = {"MPI4PY_MPIABI": self.name}
        if self.library_dir:
            old = os.environ.get("LD_LIBRARY_PATH", "")
            variables["LD_LIBRARY_PATH"] = self.library_dir + (f":{old}" if old else "")
        return variables


def find_mpi(name: str, prefix: str = sys.prefix) -> Mpi | None:
    """Returns the MPI called `name` ("mpich", "openmpi"), or None where there is no launcher."""
    library_dir = Path(prefix) / "lib"
    own = Path(prefix) / "bin"
    for program, *options in LAUNCHERS[name]:
        if (own / program).exists() and (library_dir / LIBRARIES[name]).exists():
            return Mpi(name, (str(own / program), *options), str(library_dir))
    elsewhere = [d for d in os.environ.get("PATH", "").split(os.pathsep) if Path(d) != own]
    for program, *options in LAUNCHERS[name]:
        found = shutil.which(program, path=os.pathsep.join(elsewhere))
        if found:
            return Mpi(name, (found, *options), "")
    return None
