"""`python -m autotune`."""

from __future__ import annotations

from autotune.cli.app import main

main()
