"""`python -m dda.bench` is `dda bench`."""

import sys

from dda.cli import main

sys.exit(main(["bench", *sys.argv[1:]]))
