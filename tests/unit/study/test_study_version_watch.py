"""The servers of one study are one and the same engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from autotune.errors import EnvironmentFault
from autotune.study.version_watch import VersionWatch


class Handler(BaseHTTPRequestHandler):
    body = b""

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/version" else 404)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def says(version: object) -> None:
    Handler.body = json.dumps({"version": version}).encode()


def test_the_version_that_was_promised_is_no_news(url: str) -> None:
    watch = VersionWatch("vllm", "0.26.0")
    says("0.26.0+cpu")
    assert watch.look(url) is None


def test_another_version_than_promised_is_said_once(url: str) -> None:
    watch = VersionWatch("vllm", "0.26.0")
    says("0.27.1")
    assert "version 0.27.1; 0.26.0 was expected" in (watch.look(url) or "")
    assert watch.look(url) is None


def test_an_engine_that_changes_between_trials_is_a_fault_of_the_machine(url: str) -> None:
    watch = VersionWatch("vllm", None)
    says("0.26.0")
    assert watch.look(url) is None
    says("0.26.1")
    with pytest.raises(EnvironmentFault, match="changed during the study") as caught:
        watch.look(url)
    assert caught.value.seen == "version 0.26.0 at first, 0.26.1 now"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"version": 3}', b"<html>"])
def test_an_answer_that_names_no_version_is_let_be(url: str, body: bytes) -> None:
    watch = VersionWatch("vllm", "0.26.0")
    Handler.body = body
    assert watch.look(url) is None


def test_no_answer_and_no_such_route_are_let_be(url: str) -> None:
    assert VersionWatch("vllm", "0.26.0").look("http://127.0.0.1:9") is None
    says("9.9.9")
    assert VersionWatch("generic", "0.26.0").look(url) is None
