"""What make says where it is asked for something that it would otherwise leave undone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check_torch(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(ROOT), "check-torch", f"VENV={venv}", *arguments]
    # Not what the make that runs the tests was told.
    told = ("TORCH", "MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
    env = {name: value for name, value in os.environ.items() if name not in told}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_another_torch_than_that_of_the_environment_is_an_error(tmp_path):
    asked = "TORCH=torch==2.12.1"
    assert check_torch(tmp_path, asked).returncode == 0, "nothing is made yet"
    for made_with in ("", "torch==2.13.0"):
        (tmp_path / ".torch").write_text(made_with + "\n")
        done = check_torch(tmp_path, asked)
        assert done.returncode != 0
        assert f"{tmp_path} was not made with {asked}; remove {tmp_path}" in done.stderr
        assert check_torch(tmp_path).returncode == 0
        assert check_torch(tmp_path, f"TORCH={made_with}").returncode == 0
