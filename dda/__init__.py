"""dda: collectives by direct data access.

``torch.distributed.init_process_group("dda")`` needs no more than that the package is installed;
``import dda`` adds the functions of dda.ops. They and the extension module are loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dda._autoload import register
from dda._version import __version__

if TYPE_CHECKING:
    from dda._C import Error, Options, PeerLost, Timeout
    from dda.ops import (
        Explanation,
        all_gather,
        all_reduce,
        all_to_all_single,
        barrier,
        broadcast,
        empty,
        explain,
        gather,
        reduce,
        reduce_scatter,
        scatter,
        set_timeout,
        warmup,
    )

__all__ = [
    "Error",
    "Explanation",
    "Options",
    "PeerLost",
    "Timeout",
    "__version__",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "empty",
    "explain",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "set_timeout",
    "warmup",
]

_FROM_EXTENSION = ("Error", "Options", "PeerLost", "Timeout")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dda' has no attribute {name!r}")
    if name in _FROM_EXTENSION:
        from dda._load import extension

        value = getattr(extension(), name)
    else:
        value = getattr(importlib.import_module("dda.ops"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


register()  # for programs in which torch's autoload is off
