"""What `import dda` says where the build does not fit: each case in a process of its own."""

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("__init__.py", "_autoload.py", "_load.py", "_version.py", "group.py", "ops.py")


def message_of(folder: Path, program: str) -> str:
    """Runs a program with the package in `folder`; returns the message of its ImportError."""
    program = f"""
import sys
# An editable install finds each file that this copy lacks.
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in repr(finder)]
try:
    {program}
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def package(folder: Path, build_info: str | None) -> Path:
    """A copy of the package's Python files, without the extension module."""
    (folder / "dda").mkdir()
    for name in PACKAGE:
        (folder / "dda" / name).write_text((ROOT / "dda" / name).read_text())
    if build_info is not None:
        (folder / "dda" / "_build_info.py").write_text(build_info)
    return folder


def test_F47_another_torch_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = package(tmp_path, 'TORCH = "1.0.0"\n')
    message = message_of(folder, "import dda; dda.all_reduce")
    assert "built for torch 1.0.0" in message and "pip install --no-build-isolation" in message


def test_F47_a_source_folder_says_that_nothing_is_built(tmp_path: Path) -> None:
    message = message_of(package(tmp_path, None), "import dda; dda.all_reduce")
    assert "dda is not built" in message


def test_F47_an_extension_that_does_not_load_is_named(tmp_path: Path) -> None:
    folder = package(tmp_path, f'TORCH = "{torch.__version__}"\n')
    (folder / "dda" / f"_C{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    message = message_of(folder, "import dda; dda.all_reduce")
    assert "does not load" in message, message
