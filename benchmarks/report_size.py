"""How long the report of a large study takes to build, and how large the page is.

    python benchmarks/report_size.py [TRIALS]

The study's folder is written here, with records of 120 requests per trial; no engine runs.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.report.html import build_report

STUDIES = Path(__file__).parents[1] / "tests" / "unit" / "report" / "conftest.py"


def studies() -> Any:
    """The maker of study directories that the report's tests use."""
    spec = importlib.util.spec_from_file_location("report_studies", STUDIES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Print the table."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    make = studies().Study
    print(f"{'trials':>8} {'build, s':>10} {'page, MB':>10} {'report.json, MB':>16}")
    for trials in sorted({most // 20, most // 5, most}):
        with tempfile.TemporaryDirectory() as scratch:
            study = make(path=Path(scratch) / "run", requests=120).header(trials=trials)
            study.search(trials).verdict("better").scripts()
            began = time.perf_counter()
            page = build_report(study.path)
            took = time.perf_counter() - began
            numbers = (study.path / "report.json").stat().st_size
            sizes = page.stat().st_size / 1e6, numbers / 1e6
            print(f"{trials:>8} {took:>10.1f} {sizes[0]:>10.2f} {sizes[1]:>16.2f}")


if __name__ == "__main__":
    main()
