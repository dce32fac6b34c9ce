"""Makes the flag table of a new engine version and says what changed.

    python -m autotune.engines.flag_update vllm 0.34.0
    python -m autotune.engines.flag_update sglang 0.5.24 --wheel sglang-0.5.24-....whl

The wheel is fetched with pip unless one is given, only its Python sources are unpacked, and the
engine's own code builds its parser in a bare interpreter (`flag_dump`); neither a GPU nor the
engine's own dependencies are needed, only the few small libraries that its parser is written with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engines.flag_table import FlagTable, TableFlag, table_from_json, table_versions
from autotune.engines.versions import written_numbers
from autotune.errors import AutotuneError, EnvironmentFault, InputError

ENGINES = ("vllm", "sglang")
LIBRARIES = ("pydantic", "msgspec", "regex", "numpy", "typing_extensions", "orjson")
"""What the parsers are written with; everything else that they import is replaced."""
FOLDER = Path(__file__).parent / "facts" / "flags"
_DUMP = Path(__file__).parent / "flag_dump.py"
_TIMEOUT_S = 900.0


def main(arguments: Sequence[str]) -> int:
    """Write the table and print the difference to the version before. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m autotune.engines.flag_update")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("version", help="such as 0.34.0")
    parser.add_argument("--wheel", type=Path, help="a wheel that is here already")
    parser.add_argument("--package", help="name in the package index, if not the engine's")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the tables")
    asked = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-flags-") as scratch:
            data = dump(
                asked.engine, asked.version, asked.wheel, asked.package or asked.engine,
                Path(scratch),
            )  # fmt: skip
    except AutotuneError as error:
        sys.stderr.write(f"{error.message}: {error.seen or ''}\n{error.hint or ''}\n")
        return error.exit_code
    path = asked.out / f"{asked.engine}-{asked.version}.json"
    path.write_text(render(data), encoding="utf-8")
    new = table_from_json(data)
    before = _before(asked.engine, asked.version, asked.out)
    sys.stdout.write(f"{path}: {len(new.flags)} flags\n")
    if before is not None:
        sys.stdout.write(f"since {before.versions[0]}:\n")
        sys.stdout.writelines(f"  {line}\n" for line in difference(before, new))
    return 0


def dump(
    engine: str, version: str, wheel: Path | None, package: str, scratch: Path
) -> dict[str, Any]:
    """The content of a table file, made from a wheel. `scratch`: an empty folder.

    Raises InputError for a wheel that does not hold the engine, EnvironmentFault if pip fails.
    """
    if wheel is None:
        _pip("download", "--no-deps", "--only-binary=:all:", "-d", str(scratch),
             f"{package}=={version}")  # fmt: skip
        wheel = next(scratch.glob("*.whl"))
    sources, libraries = scratch / "sources", scratch / "libraries"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", ".json"))]
        if not any(name.startswith(f"{engine}/") for name in names):
            raise InputError(message=f"this is no wheel of {engine}", seen=str(wheel))
        archive.extractall(sources, names)
    _pip("install", "--target", str(libraries), *LIBRARIES)
    answer = _run([sys.executable, "-I", "-S", str(_DUMP), engine, str(sources), str(libraries)])
    if answer.returncode != 0:
        raise InputError(
            message=f"the parser of {engine} {version} could not be built",
            seen=answer.stderr[-2000:],
            hint="flag_dump.py knows where the parsers are and what may break on the way",
        )
    return {"engine": engine, "version": version, "wheel": wheel.name, **json.loads(answer.stdout)}


def render(data: Mapping[str, Any]) -> str:
    """The text of a table file: one line per flag, sorted, so that versions can be compared."""
    head = [f"  {json.dumps(key)}: {json.dumps(data[key])}," for key in data if key != "flags"]
    flags = [
        f"    {json.dumps(name)}: {json.dumps(entry)}"
        for name, entry in sorted(data["flags"].items())
    ]
    return "\n".join(["{", *head, '  "flags": {', ",\n".join(flags), "  }", "}", ""])


def difference(old: FlagTable, new: FlagTable) -> Iterator[str]:
    """What a newer table has, lacks and takes otherwise, one sentence per flag."""
    for name in sorted(new.flags.keys() - old.flags.keys()):
        yield f"+ {name} ({new.flags[name].type})"
    for name in sorted(old.flags.keys() - new.flags.keys()):
        yield f"- {name}"
    for name in sorted(old.flags.keys() & new.flags.keys()):
        changes = list(_changes(old.flags[name], new.flags[name]))
        if changes:
            yield f"~ {name}: {'; '.join(changes)}"


def _changes(old: TableFlag, new: TableFlag) -> Iterator[str]:
    for attribute in ("type", "many", "default", "refused"):
        before, after = getattr(old, attribute), getattr(new, attribute)
        if before != after:
            yield f"{attribute} {before} -> {after}"
    for attribute in ("also", "off", "choices", "known", "keys"):
        before, after = list(getattr(old, attribute)), list(getattr(new, attribute))
        more = [str(one) for one in after if one not in before]
        less = [str(one) for one in before if one not in after]
        if more:
            yield f"{attribute} + {', '.join(more)}"
        if less:
            yield f"{attribute} - {', '.join(less)}"


def _before(engine: str, version: str, folder: Path) -> FlagTable | None:
    older = [v for v in table_versions(engine) if written_numbers(v) < written_numbers(version)]
    path = folder / f"{engine}-{older[-1]}.json" if older else None
    if path is None or not path.is_file():
        return None
    return table_from_json(json.loads(path.read_text(encoding="utf-8")))


def _pip(*words: str) -> None:
    answer = _run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words, "-q"])
    if answer.returncode != 0:
        raise EnvironmentFault(
            message=f"pip {words[0]} failed",
            seen=answer.stderr[-500:],
            hint="give the file with --wheel, or check the network and the version",
        )


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(words), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
