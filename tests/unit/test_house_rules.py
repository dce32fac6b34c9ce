"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import autotune

PACKAGE = Path(autotune.__file__).parent
ROOT = PACKAGE.parent
MOST_LINES = 400
MOST_TEST_LINES = 450
MOST_FUNCTION_LINES = 50
FORBIDDEN = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc", "base"}
BOUNDARY = PACKAGE / "cli" / "app.py"
"""The one place where any exception may be caught."""
HEAVY = ("aiohttp", "docker", "numpy", "optuna", "pandas", "plotly", "pyarrow", "pydantic", "scipy")


def modules() -> Iterator[Path]:
    for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks"):
        yield from sorted(folder.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_no_file_is_longer_than_a_reader_bears(path: Path) -> None:
    most = MOST_LINES if path.is_relative_to(PACKAGE) else MOST_TEST_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=name_of)
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # From its body on: a command's signature is its list of options
    long = [
        f"{f.name}: {lines}"
        for f in functions(tree)
        if (lines := (f.end_lineno or 0) - f.body[0].lineno + 1) > MOST_FUNCTION_LINES
    ]
    assert long == []


def test_modules_are_named_for_what_they_hold() -> None:
    assert [name_of(path) for path in modules() if path.stem in FORBIDDEN] == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=name_of)
def test_nothing_but_the_boundary_swallows_everything(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    everything = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and not any(isinstance(inner, ast.Raise) for inner in node.body)
    ]
    assert len(everything) <= (1 if path == BOUNDARY else 0)


def test_every_module_says_what_it_is_for() -> None:
    bare = [
        name_of(path)
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
        and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert bare == []


def test_packages_import_nothing_by_themselves() -> None:
    busy = [
        name_of(path)
        for path in PACKAGE.rglob("__init__.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]
    assert busy == []


def test_no_test_asserts_nothing() -> None:
    idle = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        for function in functions(ast.parse(source)):
            if function.name.startswith("test_"):
                text = ast.get_source_segment(source, function) or ""
                if not any(word in text for word in ("assert", "pytest.raises", "check", "refuse")):
                    idle.append(f"{name_of(path)}: {function.name}")
    assert idle == []


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    ask = (
        "import sys, autotune.cli.app;"
        f"print([n for n in {HEAVY!r} if n in sys.modules]);"
        "print([n for n in sys.modules if n.startswith('autotune.')])"
    )
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    loaded, ours = (ast.literal_eval(line) for line in answer.stdout.splitlines())
    assert loaded == []
    assert set(ours) <= {
        "autotune.cli", "autotune.cli.app", "autotune.cli.workload_app", "autotune.errors",
    }  # fmt: skip


def test_exit_codes_belong_to_one_class_each() -> None:
    from autotune import errors

    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    codes = sorted(kind.exit_code for kind in kinds)  # type: ignore[attr-defined]
    assert codes == [1, 2, 3, 4, 5, 130]
    assert all(a < b for a, b in pairwise(codes))
