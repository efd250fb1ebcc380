"""Checks that compiled kernels have the memory operations that the protocol stands on.

A compiler that weakened or dropped one would give kernels that are right almost always.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WAIT, LAUNCH = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
# The kernels of one hop: data that are their own signal, each unit stored and loaded in one access.
PUSH = (r"st\.relaxed\.sys\.global\.v[24]\.u(32|64)", r"ld\.relaxed\.sys\.global\.v[24]\.u(32|64)")
# Those that stage: what a block has written is ordered before the signal, and the signal before
# what is read because of it.
STAGED = (
    r"fence\.acq_rel\.sys;(?:(?!\bbra\b|\bret\b)[\s\S])*?st\.relaxed\.sys\.global\.u(32|64)",
    r"ld\.acquire\.sys\.global\.u(32|64)",
)


def kernels_of(text: str) -> dict[str, str]:
    """Returns the body of each entry function of a PTX file, by name."""
    parts = re.split(r"^\.visible \.entry (\w+)\(|^\.entry (\w+)\(", text, flags=re.MULTILINE)
    return {a or b: body for a, b, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}


def problems_of(name: str, body: str) -> list[str]:
    """Returns what a kernel lacks, in words."""
    found = [
        f"no {pattern}"
        for pattern in (PUSH if "push" in name else STAGED)
        if not re.search(pattern, body)
    ]
    if body.count(WAIT) != 1 or body.count(LAUNCH) != 1 or body.find(WAIT) > body.find(LAUNCH):
        found.append("early launch: not one wait, followed by one launch")
    memory = re.search(r"\b(ld|st)\.(global|relaxed|acquire)", body)
    if memory is not None and memory.start() < body.find(WAIT):
        found.append(f"{memory.group()} before the kernel before has ended")
    return found


def main(paths: list[str]) -> int:
    """Checks the files; returns the exit status."""
    count = 0
    failed = False
    for path in paths:
        for name, body in kernels_of(Path(path).read_text()).items():
            count += 1
            for problem in problems_of(name, body):
                failed = True
                print(f"{Path(path).name}: {name}: {problem}")
    print(f"check_ptx: {count} kernels {'FAILED' if failed or not count else 'ok'}")
    return int(failed or count == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
