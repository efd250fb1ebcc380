"""What torch runs to find the backend "dda", at `import torch` or when a group asks for it.

It runs in every program that imports torch, so it loads no library, imports nothing but what torch
has loaded already, and never raises. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Backend


_has_warned = False


def _create(opts: Any, pg_options: Any) -> Backend:
    """Makes the backend of one process group; torch calls it on every rank of the group."""
    from dda import group

    return group.create_backend(opts, pg_options)


def register() -> None:
    """Registers the backend with torch.distributed, once."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "DDA"):
            # A list: torch up to 2.13 would read a string letter by letter.
            dist.Backend.register_backend(
                "dda", _create, extended_api=True, devices=["cpu", "cuda"]
            )
    except Exception as error:  # whatever it is, it must not break `import torch`
        import warnings

        global _has_warned
        if _has_warned:
            return
        _has_warned = True
        warnings.warn(f"dda: the backend was not registered: {error!r}", stacklevel=2)
