"""Text as tokens: the model's own tokenizer where its files are at hand, else an estimate."""

from __future__ import annotations

import importlib.util
import json
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import InputError
from autotune.workload.formats.format import Encoder
from autotune.workload.hashing import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
EXTRA = "autotune[text]"
_PACKAGE = "tokenizers"


class Estimate:
    """One token per four bytes of UTF-8, rounded up: a rule of thumb for English prose and code.
    Other scripts have more bytes per character and are overestimated.
    """

    name = "estimate"
    estimated = True

    def encode(self, text: str) -> bytes:
        data = text.encode("utf-8", "replace")
        return data + b"\0" * (-len(data) % BYTES_PER_TOKEN)


class LocalTokenizer:
    """A `tokenizer.json` on this machine, read at the first text. Special tokens are not added."""

    estimated = False

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tokenizer: Tokenizer | None = None
        self.name = file.parent.name or file.name

    def encode(self, text: str) -> bytes:
        if self._tokenizer is None:
            self._tokenizer = _loaded(self._file)
        whole = text.encode("utf-8", "replace").decode("utf-8")
        ids = self._tokenizer.encode(whole, add_special_tokens=False).ids
        return array("I", ids).tobytes()


def encoder_of(tokenizer: Path) -> Encoder:
    """The encoder of a model folder or `tokenizer.json`.

    Raises InputError when there is no such file or the `tokenizers` package is missing.
    """
    file = tokenizer / TOKENIZER_FILE if tokenizer.is_dir() else tokenizer
    if not file.is_file():
        raise InputError(
            message=f"no {TOKENIZER_FILE} in {tokenizer}",
            so="the workload was not read",
            hint="name the folder of the model's files, or leave it out to estimate lengths",
        )
    if not is_available():
        raise InputError(
            message=f"the tokenizer in {tokenizer} needs the `{_PACKAGE}` package",
            so="the workload was not read",
            hint=f"pip install '{EXTRA}', or leave the tokenizer out to estimate lengths",
        )
    return LocalTokenizer(file)


def encoder_of_model(model: str) -> Encoder | None:
    """The tokenizer of a model that lies on this machine; None without one that can be used."""
    file = Path(model) / TOKENIZER_FILE
    return LocalTokenizer(file) if is_available() and file.is_file() else None


def is_available() -> bool:
    """Whether the optional `tokenizers` package is installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


def special_ids_of(model: str) -> frozenset[int]:
    """Ids of added (special) tokens of a local model folder; empty for names of a hub.

    Read from `added_tokens` of `tokenizer.json` and `added_tokens_decoder` of
    `tokenizer_config.json`; needs no package.
    """
    folder = Path(model)
    added = _json(folder / TOKENIZER_FILE).get("added_tokens")
    found = {
        entry["id"]
        for entry in (added if isinstance(added, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("id"), int)
    }
    decoder = _json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    if isinstance(decoder, dict):
        found |= {int(name) for name in decoder if name.isdecimal()}
    return frozenset(found)


def _json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _loaded(file: Path) -> Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        # The package raises bare Exception for a file that it cannot read.
        raise InputError(
            message=f"not a tokenizer: {file}", seen=str(error), so="the workload was not read"
        ) from error
