"""The extension module: the backend and what Python asks of it beyond torch's own interface."""

from datetime import timedelta

import torch
from torch.distributed import Backend, DistBackendError, Store

class Error(DistBackendError):
    """A collective failed; the message names the rank to blame."""

class PeerLost(Error):
    """A rank died or left the group."""

class Timeout(Error):
    """A rank did not arrive in time."""

class Options:
    """Options of a group, for `pg_options` of init_process_group and new_group.

    Args:
        timeout: of a call that gives none, and of making the group.
        slot_bytes: of each staging slot; 0 for DDA_SLOT_BYTES.
        threads: that a large call may use; 0 for torch's, at most one a core.
        calls_before: where the GPU's call counters begin, for tests of their wrap.
    """

    def __init__(
        self,
        timeout: timedelta = ...,
        slot_bytes: int = 0,
        threads: int = 0,
        calls_before: int = 0,
    ) -> None: ...
    group_name: str
    @property
    def slot_bytes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def calls_before(self) -> int: ...

class DdaBackend(Backend):
    """A group of ranks that share memory. All sizes are in bytes."""

    @property
    def options(self) -> Options: ...
    @property
    def timeout(self) -> timedelta: ...
    @property
    def error(self) -> str:
        """Why the group was revoked, or "" while it is in order."""
    @property
    def sequence(self) -> int:
        """How many collective calls this rank has made."""
    def abort(self, why: str = ...) -> None:
        """Ends every wait of this rank and of its peers with an error that quotes `why`."""
    def refuse(self, why: str, on_gpu: bool = False) -> None:
        """Takes the place of this rank's next call: the peers' call raises and quotes `why`."""
    def warm_up(self, device: str) -> None:
        """Makes the arenas on a GPU, such as "cuda:0". Collective."""
    def set_timeout(self, timeout: timedelta) -> None: ...
    def allocate(self, nbytes: int, device: str = "cpu") -> torch.Tensor:
        """Returns symmetric memory as a uint8 tensor. Collective."""
    def explain(
        self, collective: str, nbytes: int, symmetric: bool = False, device: str = "cpu"
    ) -> tuple[str, str, int, int]:
        """Returns algorithm, reason, number of blocks and bytes of a chunk."""
    def engine_time(
        self,
        collective: str,
        nbytes: int,
        iterations: int,
        dtype: str = "float32",
        algorithm: str = "auto",
        symmetric: bool = False,
    ) -> list[float]:
        """Returns the microseconds of each of many calls made in the engine. Collective.

        `nbytes` is the size of the larger of a rank's two buffers.
        """

class FallbackBackend(Backend):
    """A group of ranks that do not all share memory; gloo moves its data."""

    @property
    def options(self) -> Options: ...
    @property
    def reason(self) -> str: ...
    def set_timeout(self, timeout: timedelta) -> None: ...

class NullBackend(Backend):
    """A backend whose calls do nothing, to measure what torch's dispatch costs."""

    def __init__(self, rank: int, size: int) -> None: ...

def floors() -> dict[str, float]:
    """Measures what this machine can do at best, for about a second on two cores.

    Returns:
        Microseconds: `flag_us`, one core's store until another core sees it; `read_64k_us`, reading
        64 KiB that another core has just written; `add_64m_us`, one core adding two float32 arrays
        of 64 MiB into a third.
    """

def create_backend(store: Store, rank: int, size: int, options: Options) -> Backend:
    """Makes a group's backend. Collective; `store` serves this group alone."""

def check_env() -> str:
    """Returns what is wrong with this process's environment, or ""."""

def env_fingerprint() -> str:
    """Returns the settings that must agree between ranks."""

def describe_env() -> list[dict[str, object]]:
    """Returns one dict for each variable: name, values, default, doc, agreed."""
