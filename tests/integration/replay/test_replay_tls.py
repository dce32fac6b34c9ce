"""The client's own transport over TLS: an encrypted answer, and a server that cannot be trusted."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest
import uvloop

from autotune.replay.exchange import Exchange
from autotune.replay.wire import WireTransport

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate")
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: a\n\n\r\n0\r\n\r\n"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
         str(key), "-out", str(cert), "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


async def ask(key: Path, cert: Path) -> list[Exchange]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"length: ")[2].split()[0]))
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1/completions"
    transport = WireTransport(url, headers={}, connect_timeout_s=5.0)
    await transport.open()
    found = []
    for _ in range(2):
        exchange = Exchange(begun=time.monotonic())
        await transport.send(b"x" * 300_000, exchange)
        found.append(exchange)
    await transport.close()
    server.close()
    await asyncio.sleep(0.05)
    return found


def test_an_encrypted_answer_is_read_and_its_connection_used_again(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        first, second = runner.run(ask(*certificate))
    assert (first.fault, second.fault) == (None, None)
    assert b"".join(first.chunks) == b"data: a\n\n"
    assert (first.reused, second.reused) == (False, True)


def test_a_certificate_that_nobody_vouches_for_is_a_refusal_in_words(
    certificate: tuple[Path, Path],
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        first, _ = runner.run(ask(*certificate))
    assert first.fault == "refused"
    assert first.detail is not None
    assert "self-signed certificate" in first.detail.replace("self signed", "self-signed")
