"""What all tests share: tests that need ranks are skipped, aloud, where dda was not built."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

_MULTIPROCESS = Path(__file__).parent / "multiprocess"


def _why_not() -> str | None:
    """Why the multi-process tests cannot run here, or None."""
    if "dda" not in os.environ.get("DDA_TEST_BACKEND", "dda"):
        return None
    try:
        importlib.import_module("dda._C")
    except ImportError as error:
        return f"dda is not built: {error}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(_MULTIPROCESS)]
    why = _why_not() if mine else None
    if why is not None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=why))
