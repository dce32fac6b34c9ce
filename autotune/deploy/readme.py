"""`README.md` of a hand-over: what this is, how to start, check and go back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from autotune.deploy.facts import DeployFacts
from autotune.deploy.sentences import measured, one_line
from autotune.deploy.words import secrets_of
from autotune.engines.plan import LaunchPlan

_ABOUT = {
    "launch.sh": "starts the server in the foreground, as it was measured",
    "docker-run.sh": "the same, as a `docker run`",
    "compose.yaml": "for `docker compose up`",
    "k8s.yaml": "for `kubectl apply -f`",
    "autotune.service": "a systemd unit; set `User=` first",
    "rollback.sh": "starts the baseline instead",
    "manifest.json": "the deployment record as data",
}


def render(
    plan: LaunchPlan,
    facts: DeployFacts,
    *,
    files: Sequence[str] = tuple(_ABOUT),
    left_out: Mapping[str, str] | None = None,
) -> str:
    """Markdown. `files`: the names beside it; `left_out`: name -> why it is not there."""
    folder = facts.directory or "STUDY_DIRECTORY"
    caveats = [*facts.caveats]
    if facts.simulated:
        caveats.insert(0, "The engine was simulated: these numbers are not those of a GPU.")
    if not facts.confirmed:
        caveats.insert(0, "The result was not confirmed by measuring again after the search.")
    if secrets_of(plan) and facts.engine == "sglang":
        caveats.append("SGLang reads an API key only from its command line, so none is set here.")
    parts = [
        f"# {_plain(facts.study)}, trial {facts.trial}"
        + (f" ({facts.marks})" if facts.marks else ""),
        _plain(facts.verdict),
        _bullets(_plain(measured(fact)) for fact in facts.metrics),
        _changes(facts),
        "Start: `./launch.sh` (on 127.0.0.1:8000; `HOST=0.0.0.0 PORT=9000 ./launch.sh` to change"
        " that; put authentication in front before it can be reached from outside)."
        if "launch.sh" in files
        else "Nothing to start: the study measured a server that was already running.",
        _check(plan, folder),
        "Go back: `./rollback.sh`." if "rollback.sh" in files else "",
        _secrets(plan),
        "Files:\n\n" + _bullets(f"`{name}`: {_ABOUT[name]}" for name in files if name in _ABOUT),
        _left_out(left_out or {}),
        "Not shown by this study:\n\n" + _bullets(_plain(c) for c in caveats) if caveats else "",
        f"Everything behind these numbers is in the study directory {_plain(folder)}.",
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _check(plan: LaunchPlan, folder: str) -> str:
    body = json.dumps({"model": plan.model, "prompt": "The capital of France is", "max_tokens": 8})
    quoted = body.replace("'", "'\\''")
    return (
        f"Check: `autotune verify {folder}`, or\n\n```sh\n"
        "curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
        f"  -d '{quoted}'\n```"
    )


def _changes(facts: DeployFacts) -> str:
    if not facts.changed:
        return ""
    rows = (
        f"`{knob}`: {_value(before)} → {_value(after)}"
        for knob, (before, after) in facts.changed.items()
    )
    return "Changed from the baseline:\n\n" + _bullets(rows)


def _value(value: object) -> str:
    return "engine default" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _secrets(plan: LaunchPlan) -> str:
    names = sorted(set(secrets_of(plan).values()))
    return f"Secrets to set before: {', '.join(f'`{name}`' for name in names)}." if names else ""


def _left_out(left_out: Mapping[str, str]) -> str:
    if not left_out:
        return ""
    return "Left out:\n\n" + _bullets(f"`{name}`: {why}" for name, why in left_out.items())


def _bullets(items: Iterable[str]) -> str:
    return "".join(f"- {item}\n" for item in items)


def _plain(text: str) -> str:
    """Text from outside as one line that Markdown shows and does not run as HTML."""
    return one_line(text).replace("<", "&lt;")
