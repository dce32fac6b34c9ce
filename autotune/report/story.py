"""What the first screen says, and the advice that several verdicts share."""

from __future__ import annotations

from dataclasses import dataclass

RUN = "Run `best/launch.sh`. Way back: `best/rollback.sh`."
CONFIRM = "Confirm before a rollout: `autotune resume` launches both again, in turns."
KEEP = "Nothing to change. `best/launch.sh` starts today's settings."


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """`headline` is the page's `h1`; `sentences` follow it; `advice` says what to do next."""

    headline: str
    sentences: tuple[str, ...]
    advice: tuple[str, ...]
