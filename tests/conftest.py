"""What all tests share: tests that need ranks or GPUs are skipped, aloud, where there are none."""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path

import pytest

_MULTIPROCESS = Path(__file__).parent / "multiprocess"
# Files whose cases run on GPUs as well, in processes that make their tensors there.
_ON_BOTH_DEVICES = {
    f"test_{name}.py"
    for name in (
        "all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "numerics", "reduce",
        "reduce_scatter", "scatter",
    )
}  # fmt: skip


def _why_not() -> str | None:
    """Why the multi-process tests cannot run here, or None."""
    if "dda" not in os.environ.get("DDA_TEST_BACKEND", "dda"):
        return None
    try:
        importlib.import_module("dda._C")
    except ImportError as error:
        return f"dda is not built: {error}"
    return None


@cache
def _why_no_gpu() -> str | None:
    """Why the tests on GPUs cannot run here, or None."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return "needs a GPU"
    try:
        info = importlib.import_module("dda._build_info")
    except ImportError:
        return None  # _why_not says so
    return None if info.DEVICE == "cuda" else "this build of dda is for the CPU only"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(_MULTIPROCESS)]
    why = _why_not() if mine else None
    for item in mine:
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))
        if item.get_closest_marker("gpu") and _why_no_gpu() is not None:
            item.add_marker(pytest.mark.skip(reason=_why_no_gpu() or ""))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    definition = metafunc.definition
    if definition.path.name in _ON_BOTH_DEVICES and not definition.get_closest_marker("cpu"):
        on_gpu = pytest.param("cuda", marks=pytest.mark.gpu)
        metafunc.parametrize("kind_of_device", ["cpu", on_gpu], indirect=True)


@pytest.fixture(autouse=True)
def kind_of_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tells the ranks of a test where to make their tensors; see harness.device."""
    on_gpu = request.node.get_closest_marker("gpu") is not None
    monkeypatch.setenv("TEST_DEVICE", "cuda" if on_gpu else "cpu")
