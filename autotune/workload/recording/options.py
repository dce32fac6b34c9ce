"""What a recording is asked to do: addresses and sizes as text, checked before anything starts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from autotune.errors import InputError

DEFAULT_ROTATE = 64 * 10**6
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
LEAST_ROTATE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Where to listen (`port` 0: any free one), where to pass requests on, what to write.

    `upstream` has no trailing slash. A file of more than `rotate_bytes` is put aside. The header
    named `session_header` tells which requests are turns of one session.
    """

    host: str
    port: int
    upstream: str
    output: Path
    rotate_bytes: int = DEFAULT_ROTATE
    session_header: str = "x-session-id"


def listen_address(text: str, *, allow_remote: bool) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`, `[IPv6]:PORT` or `:PORT` (loopback).

    Raises InputError for anything else, and for an address that other machines can reach unless
    that is allowed.
    """
    host, colon, digits = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not digits.isdecimal() or int(digits) > 65535:
        raise InputError(
            message=f"no address to listen on: {text}",
            seen="expected HOST:PORT",
            hint="--listen 127.0.0.1:9000",
        )
    if not allow_remote and not _is_loopback(host):
        raise InputError(
            message=f"{host} can be reached from other machines",
            seen="everything that reaches the proxy is passed to the engine, and no one is asked "
            "who they are",
            so="nothing was started",
            hint="listen on 127.0.0.1, or add --allow-remote",
        )
    return host, int(digits)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def upstream_url(text: str) -> str:
    """The engine's base address without trailing slash. Raises InputError for what is none."""
    cleaned = text.strip()
    try:
        parts = urlsplit(cleaned)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise _no_upstream(text, str(error)) from error
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in cleaned):
        raise _no_upstream(text, "expected http://HOST:PORT")
    if parts.query or parts.fragment or parts.username:
        raise _no_upstream(text, "expected no user, query or fragment")
    return cleaned.rstrip("/")


def _no_upstream(text: str, why: str) -> InputError:
    return InputError(
        message=f"no address of an engine: {text}",
        seen=why,
        hint="--upstream http://127.0.0.1:8000",
    )


def size_bytes(text: str) -> int:
    """Bytes of `64MB`, `1.5GiB`, `100000`. Raises InputError for anything else and below 4 KiB."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZES.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < LEAST_ROTATE:
        raise InputError(
            message=f"no size of a file: {text}",
            seen="expected at least 4KiB, such as 64MB or 1GiB",
        )
    return size


def output_path(path: Path) -> Path:
    """The file to write. Raises InputError if it exists, cannot be made, or is named otherwise."""
    if path.suffix != ".jsonl":
        raise InputError(
            message=f"a recording is written line by line as .jsonl: {path.name}",
            hint="compress it later: `autotune workload convert FILE -o FILE.zst`",
        )
    if path.exists():
        raise InputError(
            message=f"the file exists: {path}",
            seen="block ids of two recordings mean different prompts",
            so="nothing was started",
            hint="name a new file",
        )
    if not path.parent.is_dir():
        raise InputError(message=f"no such folder: {path.parent}", so="nothing was started")
    return path
