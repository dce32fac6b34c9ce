"""Prints the command-line flags of an engine whose Python sources are at hand, as JSON.

A program of its own: it runs in a bare interpreter with the engine's sources on its path, so it
imports nothing of this package. The engine's own code builds its parser; libraries that are not
installed (torch, CUDA kernels) are replaced by stand-ins, of which none may end up in a flag.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import io
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PARSERS = {
    # Where the parser was in one version or another
    "vllm": (
        "vllm.entrypoints.openai.cli_args",
        "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.common.cli_args",
    ),
    "sglang": ("sglang.srt.server_args",),
}
_VLLM_PARSER_CLASS = ("vllm.utils.argparse_utils", "vllm.utils")
_KNOWN_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    # Values that the parser takes as any text and the configuration knows by name
    "vllm": {
        "kv-cache-dtype": ("vllm.config.cache:CacheDType",),
        "quantization": ("vllm.model_executor.layers.quantization:QUANTIZATION_METHODS",),
        "attention-backend": ("vllm.v1.attention.backends.registry:AttentionBackendEnum", "auto"),
        "load-format": ("vllm.model_executor.model_loader:LoadFormats",),
        "optimization-level": ("vllm.config.vllm:OptimizationLevel",),
    },
    "sglang": {
        "speculative-algorithm": (
            "sglang.srt.speculative.spec_info:SpeculativeAlgorithm",
            "NEXTN",
        ),
    },
}
_PROBES = ("7", "-1", "1.5", "8k", "8K", "8Ki", "auto", "text", "{}", '{"a": 1}', "None")


def _beside(name: str) -> Any:
    """A module of this folder, for an interpreter that knows nothing of the package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


stand_ins = _beside("stand_ins")


def parser_of(engine: str) -> argparse.ArgumentParser:
    """The engine's own parser. Raises ImportError if it is not where it is known to be."""
    module = _first(PARSERS[engine])
    if engine == "sglang":
        parser = argparse.ArgumentParser()
        module.ServerArgs.add_cli_args(parser)
        return parser
    made = module.make_arg_parser(_first(_VLLM_PARSER_CLASS).FlexibleArgumentParser())
    return typing.cast("argparse.ArgumentParser", made)


def _first(names: Sequence[str]) -> Any:
    problems = []
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            problems.append(str(error))
    raise ImportError("; ".join(problems))


def flags_of(parser: argparse.ArgumentParser, engine: str) -> dict[str, dict[str, Any]]:
    """Every flag by its first long spelling without dashes; see `flag_table` for the fields.

    Raises TypeError if a stand-in has become part of a flag.
    """
    spellings: dict[int, list[str]] = {}
    actions: dict[int, argparse.Action] = {}
    for spelling, action in parser._option_string_actions.items():  # noqa: SLF001
        spellings.setdefault(id(action), []).append(spelling)
        actions[id(action)] = action
    found: dict[str, dict[str, Any]] = {}
    for key, action in actions.items():
        names = spellings[key]
        if action.dest in ("help", argparse.SUPPRESS):
            continue
        on, off = _switch(parser, action, names)
        long = next((name for name in on if name.startswith("--")), on[0])
        entry: dict[str, Any] = {"also": [name for name in on if name != long], "off": off}
        entry |= _value(action) if action.nargs != 0 else _dead(parser, action, long)
        name = long.lstrip("-")
        entry["keys"] = _keys(name, action, engine)
        entry["default"] = _plain(action.default)
        if entry.get("choices") is None:
            entry["known"] = _known(_KNOWN_VALUES[engine].get(name, ()))
        found[name] = {k: v for k, v in entry.items() if v not in (None, [], {}, False)}
    text = json.dumps(found)
    if "<class '" in text or "stands_in" in text:
        raise TypeError("a stand-in has become part of a flag")
    return found


def _known(places: Sequence[str]) -> list[str]:
    """The names that a Literal, an enumeration or a list of the engine holds (`module:name`), with
    further ones that it takes; [] if it is gone.
    """
    for module, _, attribute in (place.partition(":") for place in places):
        with contextlib.suppress(*stand_ins.BREAKS):
            held = getattr(importlib.import_module(module), attribute)
            more = [place for place in places if ":" not in place]
            if isinstance(held, enum.EnumMeta):
                plain = issubclass(held, int)
                members: list[tuple[str, Any]] = list(held.__members__.items())
                return [*(str(v.value) if plain else str(n) for n, v in members), *more]
            names = held if isinstance(held, list | tuple) else typing.get_args(held)
            return [*(str(name) for name in names if isinstance(name, str)), *more]
    return []


def _switch(
    parser: argparse.ArgumentParser, action: argparse.Action, names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Spellings that switch on (or take a value), and those that switch off: by trying them."""
    if action.nargs != 0 or isinstance(action, argparse._StoreConstAction):  # noqa: SLF001
        return list(names), []
    off = []
    for name in names:
        seen = argparse.Namespace()
        quiet = contextlib.redirect_stderr(io.StringIO())
        with quiet, contextlib.suppress(SystemExit, ValueError):
            action(parser, seen, [], name)
        if getattr(seen, action.dest, None) is False:
            off.append(name)
    return [name for name in names if name not in off], off


def _dead(parser: argparse.ArgumentParser, action: argparse.Action, name: str) -> dict[str, Any]:
    """A flag that the parser still knows only to refuse it, with its own words."""
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            action(parser, argparse.Namespace(), [], name)
    except SystemExit:
        return {"type": "switch", "refused": words.getvalue().rpartition("error:")[2].strip()}
    except ValueError as error:
        return {"type": "switch", "refused": str(error)}
    return {"type": "switch"}


def _value(action: argparse.Action) -> dict[str, Any]:
    choices = None if action.choices is None else list(action.choices)
    if any(stand_ins.is_stand_in(part) for part in [action.type, *(choices or [])]):
        raise TypeError(f"a stand-in has become part of {action.option_strings}")
    kind, none = _kind(action.type)
    if choices is not None and None in choices:
        none = True
    texts = None if choices is None else [str(c) for c in choices if c is not None]
    if isinstance(action.choices, set | frozenset) and texts is not None:
        texts.sort()
    return {"type": kind, "none": none, "choices": texts, "many": action.nargs}


def _kind(convert: Any) -> tuple[str, bool]:
    """The kind of value that a conversion takes, by trying it; and whether the word `None` is one
    beside it. `str` also stands for what no probe tells apart.
    """
    if convert is None:
        return "str", False
    taken = {word for word in _PROBES if _takes(convert, word)}
    none = "None" in taken and "text" not in taken
    if "text" in taken:
        return "str", False
    if taken & {"{}", '{"a": 1}'}:
        return "json", none
    if "8Ki" in taken:
        return "si-size", none
    if "8K" in taken:
        return ("size-auto" if "auto" in taken else "size"), none
    if "7" in taken:
        return ("float" if "1.5" in taken else "int"), none
    # A configuration class with required keys takes no probe
    return ("json" if "dataclass" in repr(_innermost(convert)) else "str"), none


def _takes(convert: Callable[[str], Any], word: str) -> bool:
    try:
        convert(word)
    except stand_ins.BREAKS:
        return False
    return True


def _innermost(function: Any) -> Any:
    """The conversion inside wrappers such as `optional_type(...)`."""
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell.cell_contents, types.FunctionType):
            return _innermost(cell.cell_contents)
    return function


def _keys(name: str, action: argparse.Action, engine: str) -> dict[str, Any]:
    """The keys of a JSON value that becomes a configuration class: key -> its only values or 0."""
    inner = _innermost(action.type)
    defaults = getattr(inner, "__defaults__", None) or ()
    kind = next((default for default in defaults if isinstance(default, type)), None)
    if kind is None and engine == "vllm" and name.endswith("-config"):
        camel = "".join(part.capitalize() for part in name.split("-"))
        kind = getattr(sys.modules.get("vllm.config"), camel, None)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return {}
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        hints = {}
    given = (field for field in dataclasses.fields(kind) if field.init)
    return {field.name: _literals(hints.get(field.name)) or 0 for field in given}


def _literals(hint: Any) -> list[str] | None:
    """The only values of a Literal, possibly optional; None for any other type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return [str(value) for value in inner]
    if origin in (typing.Union, types.UnionType):
        parts = [_literals(part) for part in inner if part is not type(None)]
        if parts and all(part is not None for part in parts):
            return [value for part in parts if part for value in part]
    if origin is typing.Annotated:
        return _literals(inner[0])
    return None


def _plain(value: Any) -> Any:
    """A default as JSON; None for anything that is not plain, and for text of this machine."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return None if os.sep in value or value == argparse.SUPPRESS else value
    return None


def table_of(engine: str) -> dict[str, Any]:
    """The whole table of the engine on the import path, without its version."""
    parser = parser_of(engine)
    return {
        "positional": any(not action.option_strings for action in parser._actions),  # noqa: SLF001
        "flexible": type(parser) is not argparse.ArgumentParser,
        "flags": flags_of(parser, engine),
    }


def main(arguments: Sequence[str]) -> int:
    """`ENGINE [SOURCE_FOLDER ...]`: folders go before everything else on the import path."""
    engine, *folders = arguments
    sys.path[:0] = folders
    stand_ins.install(engine)
    # What the engine prints while it is imported does not belong to the answer
    with contextlib.redirect_stdout(sys.stderr):
        table = table_of(engine)
    sys.stdout.write(json.dumps(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
