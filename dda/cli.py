"""The command `dda`: `dda bench`, `dda plot` and `dda doctor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

USAGE = """usage: dda COMMAND [arguments]

  dda bench COLLECTIVE   time and check a collective, several backends side by side
  dda plot FILE          draw latency and bandwidth of results that dda bench wrote as JSON
  dda doctor             say what this machine and this install can do

`dda COMMAND --help` says more."""

# A command's module is imported when it runs: doctor must work where bench cannot.
COMMANDS = {"bench": "dda.bench.command", "plot": "dda.bench.plot", "doctor": "dda.bench.doctor"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns the exit status.

    Args:
        arguments: the command and what follows it; by default those of this process.
    """
    command, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command not in COMMANDS:
        print(f"dda: there is no command {command!r}\n{USAGE}", file=sys.stderr)
        return 2
    try:
        return int(import_module(COMMANDS[command]).main(rest))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
