"""The environment variables of csrc/core/env.cpp: each case in a process of its own, read once."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
from dda import _C
print(json.dumps([_C.check_env(), _C.env_fingerprint(), _C.describe_env()]))
"""


def read(**variables: str) -> tuple[str, str, list[dict]]:
    """Returns what is wrong, the fingerprint and the descriptions, with these variables set."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DDA_")}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=clean | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    return tuple(json.loads(output.splitlines()[-1]))


def test_defaults_are_valid():
    problem, fingerprint, described = read()
    assert problem == ""
    for variable in described:
        assert variable["doc"]
        assert (variable["name"] in fingerprint) == variable["agreed"]


@pytest.mark.parametrize(("word", "bytes_"), [("4K", 4096), ("1M", 1 << 20), ("8192", 8192)])
def test_sizes_take_suffixes(word, bytes_):
    problem, fingerprint, _ = read(DDA_SLOT_BYTES=word)
    assert problem == ""
    assert f"DDA_SLOT_BYTES={bytes_} " in fingerprint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DDA_SLOT_BYTES", "2G"),  # too large
        ("DDA_SLOT_BYTES", "12"),  # too small
        ("DDA_SLOT_BYTES", "9999999999999999999"),  # no 64-bit number
        ("DDA_SLOT_BYTES", "9007199254740993K"),  # none with its suffix
        ("DDA_SLOT_BYTES", "4KK"),
        ("DDA_SLOT_BYTES", ""),
        ("DDA_ISA", "sse"),
        ("DDA_DISABLE_SHARED_MEMORY", "yes"),
        ("DDA_FAILPOINT", "publish:0:1:kill"),  # this build has no fail points
        ("DDA_SLOTBYTES", "4K"),  # no such variable
    ],
)
def test_bad_values_and_names_are_named(name, value):
    problem, _, _ = read(**{name: value})
    assert name in problem


def test_variables_of_the_build_are_left_alone():
    assert read(DDA_BUILD="cpu")[0] == ""
