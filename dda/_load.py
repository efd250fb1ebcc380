"""Loads the extension module, and says plainly what is wrong where it does not fit."""

from __future__ import annotations

import functools
from types import ModuleType


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@functools.cache
def extension() -> ModuleType:
    """Returns the module dda._C, which also registers the operators ``torch.ops.dda``.

    Raises:
        ImportError: dda is not built, or was built for another torch.
    """
    import torch

    try:
        from dda import _build_info
    except ImportError as error:
        raise ImportError(
            "dda is not built. In its source folder run: pip install --no-build-isolation ."
        ) from error
    built_for, running = str(vars(_build_info)["TORCH"]), str(torch.__version__)
    remedy = (
        f"dda was built for torch {built_for} and this is torch {running}. Build it again with "
        "this torch: pip install --no-build-isolation --force-reinstall --no-deps ."
    )
    if _minor(built_for) != _minor(running):
        raise ImportError(remedy)
    try:
        from dda import _C
    except ImportError as error:
        raise ImportError(f"dda's extension module does not load ({error}). {remedy}") from error
    return _C
