"""Checks that kernels for AMD GPUs have the memory operations that the protocol stands on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# A load that looks past the caches of its compute unit: what a wait polls.
POLL = r"\b(flat|global)_load_dword(x2)? .*\b(glc|sc0|sc1)\b"
# What a block has written leaves the caches before its signal, and nothing old is left in them
# behind a wait.
RELEASE, ACQUIRE = r"\bbuffer_wbl2\b", r"\bbuffer_inv"


def main(paths: list[str]) -> int:
    """Checks the files; returns the exit status."""
    count = 0
    failed = False
    for path in paths:
        text = Path(path).read_text()
        for name in re.findall(r"^\s*\.amdhsa_kernel (\w+)", text, re.MULTILINE):
            count += 1
            body = text[text.index(f"\n{name}:") : text.index(f".amdhsa_kernel {name}")]
            wanted = [POLL] if "push" in name else [POLL, RELEASE, ACQUIRE]
            for pattern in wanted:
                if not re.search(pattern, body):
                    failed = True
                    print(f"{Path(path).name}: {name}: no {pattern}")
    print(f"check_isa: {count} kernels {'FAILED' if failed or not count else 'ok'}")
    return int(failed or count == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
