"""`launch.sh` and `rollback.sh`: the measured launch as a bash script, word for word."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.deploy.facts import DeployFacts
from autotune.deploy.quoting import bash_word, shell_name
from autotune.deploy.sentences import commented, header, one_line
from autotune.deploy.words import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    Word,
    is_container,
    launch_words,
    process_environment,
    secrets_of,
)
from autotune.engines.plan import LaunchPlan


def render(plan: LaunchPlan, facts: DeployFacts) -> str:
    """A script that starts the plan in the foreground (`exec`, so that signals reach it).

    HOST and PORT (for a container plan also CONTAINER, its name) may be set by the caller; further
    arguments of the script are appended to the command. Raises InputError for a plan that starts
    nothing, or a variable name that no shell can export.
    """
    words = launch_words(plan, facts)
    container = is_container(plan)
    differs = "listen address and port (HOST, PORT)"
    if container and facts.image_digest is not None:
        differs += "; the image is named by its digest"
    parts = [
        "#!/usr/bin/env bash\n" + commented(header(plan, facts, differs)),
        "set -euo pipefail\n",
        _choices(words),
        _command_check(words),
        _secrets(plan),
        "" if container else _environment(process_environment(plan)),
        "cmd=(\n" + "".join(_lines(words, facts)) + ")\n",
        'exec "${cmd[@]}" "$@"\n',
    ]
    return "\n".join(part for part in parts if part)


def _choices(words: Sequence[Word]) -> str:
    kinds = {word.kind: word.text for word in words}
    lines = []
    if {"host", "publish"} & kinds.keys():
        lines.append(f'HOST="${{HOST:-{DEFAULT_HOST}}}"  # 0.0.0.0 to be reached from outside\n')
    if {"port", "publish"} & kinds.keys():
        lines.append(f'PORT="${{PORT:-{DEFAULT_PORT}}}"\n')
    if "container" in kinds:
        lines.append(f'CONTAINER="${{CONTAINER:-{kinds["container"]}}}"\n')
    return "".join(lines)


def _command_check(words: Sequence[Word]) -> str:
    program = bash_word(words[0].text)
    return (
        f"if ! command -v -- {program} >/dev/null; then\n"
        f'  echo "${{0##*/}}: command not found:" {program} >&2\n'
        "  exit 127\n"
        "fi\n"
    )


def _secrets(plan: LaunchPlan) -> str:
    text = ""
    for target, source in secrets_of(plan).items():
        ours, theirs = shell_name(source), shell_name(target)
        text += (
            f'if [[ -z "${{{ours}:-}}" ]]; then\n'
            f'  echo "${{0##*/}}: {ours} is not set: the server needs this secret" >&2\n'
            "  exit 2\n"
            "fi\n"
        )
        text += f'export {theirs}="${ours}"\n' if theirs != ours else f"export {theirs}\n"
    return text


def _environment(env: dict[str, str]) -> str:
    return "".join(f"export {shell_name(k)}={bash_word(v)}\n" for k, v in env.items())


def _lines(words: Sequence[Word], facts: DeployFacts) -> list[str]:
    lines = []
    for word in words:
        flag = word.text.partition("=")[0].lstrip("-")
        notes = facts.flag_notes if word.text.startswith("-") else {}
        note = notes.get(flag) or notes.get(flag.removeprefix("no-"))
        comment = f"  # {one_line(note)}" if note else ""
        lines.append(f"  {_written(word)}{comment}\n")
    return lines


def _written(word: Word) -> str:
    match word.kind:
        case "host":
            return '"$HOST"'
        case "port":
            return '"$PORT"'
        case "publish":
            return f'"$HOST:$PORT:{word.text}"'
        case "container":
            return '"$CONTAINER"'
        case "text":
            return bash_word(word.text)
