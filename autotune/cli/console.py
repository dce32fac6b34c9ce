"""Where the command line speaks: talk to stderr, results to stdout, one way to show an error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from autotune.canonical import Json
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from rich.console import Console


def talk() -> Console:
    """The console for people (stderr). Honours NO_COLOR and non-terminals by itself."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """One plain line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def result(text: str) -> None:
    """A result: the only thing that goes to stdout."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def say_plan(text: str, alarm: str, *, as_result: bool = False) -> None:
    """A plan for people, or as a result; what follows `alarm` in its line is red on a terminal."""
    stream = sys.stdout if as_result else sys.stderr
    if alarm not in text or not stream.isatty():
        (result if as_result else say)(text)
        return
    from rich.console import Console
    from rich.text import Text

    shown = Text(text)
    shown.highlight_regex(rf"{alarm}.*", "bold red")
    Console(stderr=not as_result, highlight=False, soft_wrap=True).print(shown)


def result_json(value: Json) -> None:
    """A result as one strict JSON document."""
    result(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False))


def show_error(error: AutotuneError) -> None:
    """An error in the house's template; colour only for its two labels, only on a terminal."""
    from rich.text import Text

    from autotune.spec.render import render_error

    console = talk()
    for line in render_error(error).splitlines():
        text = Text(line)
        text.highlight_regex(r"^error:", "bold red")
        text.highlight_regex(r"^hint:", "bold cyan")
        console.print(text, soft_wrap=True)
