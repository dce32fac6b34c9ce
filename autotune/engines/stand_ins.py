"""Stand-ins for the libraries that an engine imports and that are not installed.

Used by `flag_dump` in a bare interpreter, so it imports nothing of this package. With them the
engine's modules import far enough to build its command-line parser; what they stand for must not
become part of it (`is_stand_in`).
"""

from __future__ import annotations

import abc
import argparse
import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BREAKS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError,
    RuntimeError, SyntaxError, TypeError, ValueError, argparse.ArgumentTypeError,
)  # fmt: skip
"""What code that misses its libraries, or a conversion given the wrong word, may raise."""
_ESSENTIAL_NAMES = ("arg_utils", "cli_args", "server_args")
_ESSENTIAL_PARTS = ("vllm.config", "vllm.platforms")
"""Modules (last part, or beginning of the name) that must import; any other may be broken."""
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


class _StandInType(abc.ABCMeta):
    """The class of every name of a library that is not there: it can be called, subclassed,
    indexed, used as decorator or annotation, and has every attribute.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name not in ("__func__", "__class_validators__"):
            raise AttributeError(name)
        if name == "ns":  # the namespace of a torch library: used as text
            return "absent"
        made = _stand_in(f"{cls.__name__}.{name}")
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "stands_in" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]  # a decorator gives back what it decorates
        return cls

    def register(cls, *args: Any, **kwargs: Any) -> Any:
        del kwargs
        return args[0] if args else cls

    def _itself(cls, *_: Any) -> Any:
        return cls

    def _never(cls, *_: Any) -> bool:
        return False

    def __setitem__(cls, key: Any, value: Any) -> None: ...
    def __delitem__(cls, key: Any) -> None: ...
    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return True

    def __hash__(cls) -> int:
        return id(cls)

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = _itself
    __mul__ = __rmul__ = __truediv__ = __floordiv__ = __neg__ = __and__ = __enter__ = _itself
    __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __exit__ = _never

    def __index__(cls) -> int:
        return 0

    __int__ = __index__


def _stand_in(name: str) -> Any:
    def schema(cls: type, source: Any, handler: Any) -> Any:
        del cls, source, handler
        from pydantic_core import core_schema

        return core_schema.any_schema()

    body = {
        "stands_in": True,
        "__init_subclass__": classmethod(lambda cls, **_: None),
        "__init__": lambda self, *_, **__: None,
        "__get_pydantic_core_schema__": classmethod(schema),
    }
    return _StandInType(name, (), body)


class _Absent(types.ModuleType):
    """A module that is not installed, or broke half-way: what it lacks is a stand-in."""

    __path__: typing.ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "99.0.0"
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _stand_in(name)
        setattr(self, name, made)
        return made


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, last of all, a stand-in for what the engine imports and is not installed. An import
    that the engine guards by `try` stays missing.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        del path, target
        root, _, rest = name.partition(".")
        if not isinstance(sys.modules.get(name.rpartition(".")[0]), _Absent):
            frame = _importer()
            asker = "" if frame is None else frame.f_globals.get("__name__", "")
            own = root == self._engine
            if asker.partition(".")[0] != self._engine or root in sys.stdlib_module_names:
                return None
            if own and not name.rpartition(".")[2].startswith("_"):
                return None  # of the engine itself only compiled parts are missing
            if (rest and not own) or root.startswith("vllm_") or _is_guarded(frame):
                return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class _Forgiving(importlib.machinery.SourceFileLoader):
    """Loads a module of the engine; one that breaks without its libraries keeps what it has."""

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            super().exec_module(module)
        except BREAKS as error:
            name = module.__name__
            if name.rpartition(".")[2] in _ESSENTIAL_NAMES or name.startswith(_ESSENTIAL_PARTS):
                raise
            sys.stderr.write(f"broken: {name}: {type(error).__name__}: {error}"[:200] + "\n")
            module.__class__ = _Absent


class _Own(importlib.abc.MetaPathFinder):
    """Finds the engine's own modules, so that they are loaded forgivingly."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != self._engine:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Forgiving(spec.loader.name, spec.loader.path)
        return spec


def _importer() -> types.FrameType | None:
    frame: types.FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame


@functools.cache
def _guarded_lines(path: str) -> frozenset[int]:
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            caught = [h.type or ast.Name("Exception") for h in node.handlers]
            names = {n.id for c in caught for n in ast.walk(c) if isinstance(n, ast.Name)}
            if names & _IMPORT_ERRORS:
                for statement in node.body:
                    lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return frozenset(lines)


def _is_guarded(frame: types.FrameType | None) -> bool:
    return frame is not None and frame.f_lineno in _guarded_lines(frame.f_code.co_filename)


def install(engine: str) -> None:
    """Make the engine importable without its libraries; its version reads as a CPU build's."""
    ask = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name == engine:
            return "0.0.0+cpu"
        try:
            return ask(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            return "99.0.0"

    importlib.metadata.version = version
    sys.meta_path.insert(0, _Own(engine))
    sys.meta_path.append(_Missing(engine))


def is_stand_in(value: object) -> bool:
    """Whether something is the stand-in for what is not installed."""
    return isinstance(value, _StandInType)
