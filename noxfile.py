"""Every check of the project; `.ci/run` and people call the same sessions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "imports", "tests", "wheel"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True


def _install(session: nox.Session, extra: str) -> None:
    session.install("-e", f".[{extra}]")


@nox.session
def lint(session: nox.Session) -> None:
    _install(session, "dev")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    _install(session, "dev")
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    _install(session, "dev")
    session.run("lint-imports")


@nox.session
def tests(session: nox.Session) -> None:
    _install(session, "test")
    session.run("pytest", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel and run the main command from it, away from the source tree."""
    session.install("build")
    with tempfile.TemporaryDirectory() as scratch:
        session.run("python", "-m", "build", "--wheel", "--outdir", scratch, ".")
        built = next(Path(scratch).glob("*.whl"))
        session.install("--force-reinstall", "--no-deps", str(built))
        session.install(str(built))
        session.chdir(scratch)
        session.run("autotune", "space", "show", "vllm")
        session.run("autotune", "workload", "inspect", "quickstart", "--json")
