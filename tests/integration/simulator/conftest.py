"""Starts the simulated server as a real process and ends it again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Server:
    """A running simulated server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def call(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers of one call; POST when there is a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path,
            data=data,
            headers={"Content-Type": "application/json"} | (headers or {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), dict(error.headers)

    def events(self, path: str, body: Any) -> list[str]:
        """The data of all stream events of one call."""
        _status, text, _headers = self.call(path, {**body, "stream": True})
        return [line[6:] for line in text.split("\n") if line.startswith("data: ")]

    def wait_ready(self, limit_s: float = 15.0) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            assert self.process.poll() is None, self.text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError("not ready in time: " + self.text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(*flags, ready=True, env={})` -> Server; all are ended after the test."""
    servers: list[Server] = []

    def _start(
        *flags: str, ready: bool = True, env: dict[str, str] | None = None, port: int | None = None,
        command: tuple[str, ...] = ("serve", "tiny"),
    ) -> Server:  # fmt: skip
        log = tmp_path / f"server-{len(servers)}.log"
        port = port or free_port()
        words = [sys.executable, "-m", "autotune.simulator", *command, "--port", str(port)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*words, *flags],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )
        server = Server(process, port, log)
        servers.append(server)
        if ready:
            server.wait_ready()
        return server

    yield _start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(timeout=10)
