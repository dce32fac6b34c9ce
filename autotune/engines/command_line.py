"""A launch command as people paste it, taken apart into program, model, parameters, environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from autotune.canonical import Json
from autotune.engines.engine import ParsedCommand
from autotune.engines.facts import EngineFacts
from autotune.engines.flags import as_switch, flag_name, is_secret_flag, value_of_word
from autotune.engines.known_flags import Flag
from autotune.engines.redaction import is_secret_name
from autotune.engines.shell_words import ShellText, assignment, read_shell
from autotune.errors import InputError

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_WRAPPERS = frozenset({"exec", "env", "nohup", "sudo", "time", "command", "setsid"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_ADDRESS = frozenset({"host", "port", "uds"})
_MODEL_FLAGS = ("model", "model-path", "model-tag")
_LAUNCH_TAILS = (
    ("vllm", "serve"),
    ("autotune.simulator", "serve"),
    ("autotune.simulator", "serve-sglang"),
)

# `docker run` options that take no value; every other one takes the next word.
_DOCKER_SWITCHES = frozenset(
    {
        "--detach",
        "--rm",
        "--interactive",
        "--tty",
        "--init",
        "--privileged",
        "--read-only",
        "--quiet",
        "--publish-all",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--sig-proxy",
        "--use-api-socket",
        "--disable-content-trust",
    }
)
_DOCKER_SHORT_SWITCHES = frozenset("ditPq")


@dataclass(slots=True, kw_only=True)
class _Launch:
    """A launch command found in a text: its words with environment and image split off."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None


def parse_launch_command(text: str, facts: EngineFacts) -> ParsedCommand:
    """Take a pasted command, or the text of a script that holds one, apart.

    Understands `vllm serve MODEL ...`, `python -m ...api_server --model MODEL ...`, `sglang serve`,
    `python -m sglang.launch_server --model-path MODEL ...`, `docker run ... IMAGE ...`, leading
    assignments, `exec`, `bash -c '...'`, scripts, and bare flags. Address and
    secrets are left out; values are typed by the flag's kind. Raises InputError.
    """
    shell = read_shell(text)
    launch = _find(shell, facts)
    program, arguments = _split_program(launch.words, facts, contained=launch.image is not None)
    model, params = _Arguments(arguments, facts).read()
    _check_resolved(shell, model, params)
    env = {
        name: value
        for name, value in {**shell.exports, **launch.env}.items()
        if not is_secret_name(name) and not any(part in value for part in shell.unresolved)
    }
    return ParsedCommand(
        command=tuple(program), model=model, params=params, env=env, image=launch.image
    )


def _find(shell: ShellText, facts: EngineFacts) -> _Launch:
    """The command that starts the server: the last one that looks like it, else the only one."""
    launches = [_unwrap(words) for words in shell.commands]
    launches = [launch for launch in launches if launch.words]
    found = [launch for launch in launches if _is_launch(launch, facts)]
    if found:
        return found[-1]
    if len(launches) == 1:
        return launches[0]
    raise InputError(
        message=f"no {facts.engine} launch command found in the text given",
        seen="nothing at all" if not launches else f"{len(launches)} other commands",
        hint=_example(facts),
    )


def _example(facts: EngineFacts) -> str:
    words = [*(facts.command or ("PROGRAM",)), "MODEL"]
    if not facts.takes_model_word:
        words.insert(-1, facts.model_flag)
    return f"paste the whole command, for example: {' '.join(words)} --FLAG VALUE"


def _unwrap(words: Sequence[str]) -> _Launch:
    """Take leading assignments, wrappers, `bash -c` and `docker run` off."""
    rest = list(words)
    env: dict[str, str] = {}
    while rest:
        pair = assignment(rest[0])
        name = PurePosixPath(rest[0]).name
        if pair is not None:
            env[pair[0]] = pair[1]
            rest = rest[1:]
        elif name in _WRAPPERS:
            rest = rest[1:]
            while rest and rest[0].startswith("-") and not rest[0].startswith("--"):
                rest = rest[1:]
        elif name in _SHELLS and len(rest) > 2 and re.fullmatch(r"-\w*c", rest[1]):
            inner = read_shell(rest[2]).commands
            launch = _unwrap(inner[-1]) if inner else _Launch(words=[])
            launch.env = env | launch.env
            return launch
        elif name in ("docker", "podman", "nerdctl") and "run" in rest[1:3]:
            launch = _from_docker(rest[rest.index("run") + 1 :])
            launch.env = env | launch.env
            return launch
        else:
            break
    return _Launch(words=rest, env=env)


def _from_docker(words: Sequence[str]) -> _Launch:
    rest, entry = list(words), list[str]()
    env: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        name, equals, value = option.partition("=")
        if not option.startswith("--"):
            letters = option[1:]
            if set(letters) <= _DOCKER_SHORT_SWITCHES:
                continue
            name, value = option[:2], letters[1:].lstrip("=")
            equals = value
        elif name in _DOCKER_SWITCHES:
            continue
        if not equals:
            value = rest.pop(0) if rest else ""
        if name in ("-e", "--env"):
            pair = assignment(value)
            env |= {pair[0]: pair[1]} if pair is not None else {}
        elif name == "--entrypoint":
            entry = shlex.split(value)
    if not rest:
        raise InputError(message="the `docker run` command names no image")
    image, arguments = rest[0], rest[1:]
    inner = _unwrap([*entry, *arguments])
    return _Launch(words=inner.words, env=env | inner.env, image=image)


def _is_launch(launch: _Launch, facts: EngineFacts) -> bool:
    if launch.image is not None:
        return True
    return _program_length(launch.words, facts) is not None or launch.words[0].startswith("--")


def _program_length(words: Sequence[str], facts: EngineFacts) -> int | None:
    """How many words are the program part of a known launch command; None if it is no such one."""
    known = [words[-2:] for words in (facts.command, *facts.programs) if len(words) > 1]
    tails = {*_LAUNCH_TAILS, *known}
    for at, word in enumerate(words):
        if word in facts.model_flag_words:
            return at + 1
        following = words[at + 1] if at + 1 < len(words) else None
        if (PurePosixPath(word).name, following) in tails:
            return at + 2
    return None


def arguments_of(words: Sequence[str], facts: EngineFacts) -> list[str]:
    """The words behind the program of a launch command: what `FlagTable.check` reads."""
    length = _program_length(words, facts)
    return list(words if length is None else words[length:])


def _split_program(
    words: Sequence[str], facts: EngineFacts, *, contained: bool
) -> tuple[list[str], list[str]]:
    length = _program_length(words, facts)
    if length is not None:
        return list(words[:length]), list(words[length:])
    if contained and facts.command:
        # An image of the engine whose entry point is the server.
        return list(facts.command), list(words)
    first_flag = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    program = list(words[:first_flag])
    if facts.command and program:
        raise InputError(
            message=f"this is no {facts.engine} launch command: {shlex.join(words)[:80]}",
            hint=_example(facts),
        )
    return program, list(words[first_flag:])


class _Arguments:
    """Reads the words behind the program part."""

    def __init__(self, words: Sequence[str], facts: EngineFacts) -> None:
        self._words = list(words)
        self._facts = facts
        self._model: str | None = None
        self._params: dict[str, Json] = {}

    def read(self) -> tuple[str | None, dict[str, Json]]:
        """The model and the parameters. Raises InputError for a word that has no place."""
        while self._words:
            word = self._words.pop(0)
            if _is_flag(word):
                self._flag(word)
            elif self._model is None:
                self._model = word
            else:
                raise InputError(
                    message=f"a word in the launch command belongs to no flag: {word}",
                    hint="quote values that hold blanks",
                )
        return self._model, self._params

    def _flag(self, word: str) -> None:
        level = re.fullmatch(r"-O=?(\d)", word)
        written, equals, given = (
            ("--optimization-level", "=", level[1]) if level else word.partition("=")
        )
        name = flag_name(self._facts, written)
        name, value = self._positive(name, self._value(name, given if equals else None))
        head = name.partition(".")[0]
        if head in _MODEL_FLAGS:
            self._model = str(value)
        elif head == "config":
            raise InputError(
                message="the launch command reads its settings from a file: --config",
                hint="write those settings into the command, or under `engine.args`",
            )
        elif head not in _ADDRESS and not is_secret_flag(self._facts, head):
            self._params[name] = value

    def _positive(self, name: str, value: Json) -> tuple[str, Json]:
        """`no-x` on as `x` off, and so for other negative spellings."""
        facts = self._facts
        plain = name.removeprefix("no-")
        if isinstance(value, bool) and name in facts.opposites:
            return facts.opposites[name], not value
        if isinstance(value, bool) and plain != name and name not in facts.flags:
            return plain, not value
        return name, value

    def _value(self, name: str, given: str | None) -> Json:
        flag = self._facts.flags.get(name)
        negated = self._facts.flags.get(name.removeprefix("no-"))
        if any(one is not None and one.kind in ("switch", "bare") for one in (flag, negated)):
            switch = True if given is None else as_switch(given)
            if switch is None:
                raise InputError(
                    message=f"`{name}` is a switch and takes no value", seen=str(given)
                )
            return switch
        if given is not None:
            value = value_of_word(given, flag)
            return [value] if flag is not None and flag.kind == "ints" else value
        words = self._following(one=not self._takes_several(name, flag))
        if not words:
            if flag is None and name not in _ADDRESS and name not in _MODEL_FLAGS:
                return True
            raise InputError(message=f"`{name}` has no value in the launch command")
        values = [value_of_word(word, flag) for word in words]
        if len(values) == 1 and (flag is None or flag.kind != "ints"):
            return str(words[0]) if name in _MODEL_FLAGS else values[0]
        return values

    def _takes_several(self, name: str, flag: Flag | None) -> bool:
        if flag is not None:
            return flag.several
        if name in self._facts.secrets:
            return True
        # Behind a flag that is not known here, the model may still be to come.
        return self._model is not None and name not in _ADDRESS and name not in _MODEL_FLAGS

    def _following(self, *, one: bool) -> list[str]:
        words: list[str] = []
        while self._words and not _is_flag(self._words[0]) and not (one and words):
            words.append(self._words.pop(0))
        return words


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _check_resolved(shell: ShellText, model: str | None, params: dict[str, Json]) -> None:
    """Refuse values that only a shell could work out. Raises InputError."""
    named = {"model": model, **params}
    for name, value in named.items():
        for part in shell.unresolved:
            if isinstance(value, str) and part in value:
                raise InputError(
                    message=f"`{name}` is set by a shell variable of unknown value: {part}",
                    hint="replace it by its value",
                )
