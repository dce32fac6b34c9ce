"""`python -m autotune.simulator serve MODEL ...`."""

from __future__ import annotations

import sys

from autotune.simulator.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
