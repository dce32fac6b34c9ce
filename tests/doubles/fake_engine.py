"""A fake inference engine that does as a scenario file says: it prints, forks, hangs, dies, lies.

    python fake_engine.py SCENARIO.json [MODEL] --host H --port P [any other flags]

It has no model and measures nothing. Its "GPU" is a lock file: who holds it has the memory. Keys of
the scenario, all optional:

say: lines printed at start.            exit: {code} or {signal}: end after `say`, never listen.
children: so many processes that leave the session, take another name, ignore SIGTERM and hold the
  GPU (`FILE.0`, ...).                   ignore_term: so does the engine itself.
gpu: lock file; while another holds it (or a child of another) the engine refuses to start.
repeat: a line printed every 0.1 s for ever, without ever listening.
listen_after_s, unready_s: delay before the port is open; time in which generations answer 503.
model: the name that is listed, if not the model given.      requests: file that takes each path.
argv: file that takes the words of each launch, one JSON list a line.
stall_after: so many generations are answered; the others begin and never go on.
after_requests: {count, say, exit}: die in the middle of the answers once so many were begun.
cases: [{flags, first, last, ...keys}]: other keys for launches whose words hold `flags` in a row,
  and whose number is in first..last (from 1; counted in SCENARIO.json.count).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

PR_SET_NAME = 15
STARTED = time.monotonic()
TAKEN = (
    "ValueError: Free memory on device cuda:0 (1.3/80.0 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 72.0 GiB). Decrease GPU memory utilization or reduce GPU memory used "
    "by other processes."
)
HELD: list[Any] = []
"""Open lock files."""


def say(lines: list[str]) -> None:
    for line in lines:
        print(line, flush=True)


def end(how: dict[str, int]) -> NoReturn:
    if "signal" in how:
        os.kill(os.getpid(), how["signal"])
        time.sleep(60)
    os._exit(how.get("code", 1))


def launch_number(path: Path) -> int:
    counter = path.with_suffix(".json.count")
    number = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(number))
    return number


def chosen(path: Path, words: list[str]) -> dict[str, Any]:
    """The scenario of this launch: the common keys, then those of each case that applies."""
    scenario: dict[str, Any] = json.loads(path.read_text())
    number = launch_number(path)
    text = " ".join(words) + " "
    for case in scenario.pop("cases", []):
        flags = " ".join(case.get("flags", []))
        if (not flags or f" {flags} " in f" {text}") and case.get("first", 1) <= number <= case.get(
            "last", number
        ):
            scenario |= case
    return scenario


def take(file: str) -> bool:
    """Whether the lock could be had; it is kept until this process ends."""
    handle = Path(file).open("a")  # noqa: SIM115 - held as long as the process lives
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    HELD.append(handle)
    return True


def stubborn_child(file: str) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"innocent", 0, 0, 0)
    for handle in HELD:  # the parent's own lock, shared by the fork
        handle.close()
    if take(file):
        Path(f"{file}.pid").write_text(str(os.getpid()))
    time.sleep(600)
    os._exit(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scenario: dict[str, Any]
    model: str
    begun = 0
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        return

    def note(self) -> None:
        if file := self.scenario.get("requests"):
            with Path(file).open("a") as stream:
                stream.write(self.path + "\n")

    def do_GET(self) -> None:
        self.note()
        bodies = {
            "/health": {},
            "/version": {"version": self.scenario.get("version", "0.0-fake")},
            "/v1/models": {"object": "list", "data": [{"id": self.model}]},
        }
        found = self.path in bodies
        self.answer(200 if found else 404, bodies.get(self.path, {"error": "no such path"}))

    def do_POST(self) -> None:
        self.note()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if time.monotonic() - STARTED < self.scenario.get("unready_s", 0.0):
            self.answer(503, {"error": "loading"})
            return
        dying = self.scenario.get("after_requests")
        with Handler.lock:
            Handler.begun += 1
            if dying and Handler.begun > dying["count"]:
                say(dying.get("say", []))
                self.answer(500, {"error": "the engine is dead"})
                end(dying.get("exit", {"code": 1}))
            stalls = Handler.begun > self.scenario.get("stall_after", Handler.begun)
        if stalls:
            self.send_response(200)
            self.end_headers()
            time.sleep(600)
        self.stream(body.get("max_tokens") or 1)

    def stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(count):
            finish = "length" if number == count - 1 else None
            choice = {"index": 0, "text": f" {number}", "finish_reason": finish}
            self.event({"choices": [choice], "usage": {"completion_tokens": number + 1}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, body: object) -> None:
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def prepare(scenario: dict[str, Any], words: list[str]) -> None:
    """All that comes before the port is open; may end or never return."""
    ignore = scenario.get("ignore_term")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else lambda *_: os._exit(0))
    if file := scenario.get("argv"):
        with Path(file).open("a") as stream:
            stream.write(json.dumps(words) + "\n")
    gpu = scenario.get("gpu")
    if gpu:
        files = [gpu, *(f"{gpu}.{number}" for number in range(scenario.get("children", 0)))]
        if not all(take(file) for file in files):
            say([TAKEN])
            end({"code": 1})
        for handle in HELD[1:]:  # for the children
            handle.close()
        for file in files[1:]:
            if os.fork() == 0:
                stubborn_child(file)
    say(scenario.get("say", []))
    if "exit" in scenario:
        end(scenario["exit"])
    while line := scenario.get("repeat"):
        say([line])
        time.sleep(0.1)
    time.sleep(scenario.get("listen_after_s", 0.0))


def main() -> None:
    path, words = Path(sys.argv[1]), sys.argv[2:]
    if any(word.startswith("--help") for word in words):
        sys.exit(2)
    scenario = chosen(path, words)
    prepare(scenario, words)
    Handler.scenario = scenario
    Handler.model = scenario.get("model") or words[0]
    host, port = (words[words.index(flag) + 1] for flag in ("--host", "--port"))
    try:
        server = Server((host, int(port)), Handler)
    except OSError as error:
        say(
            [f"ERROR: [Errno {error.errno}] error while attempting to bind: address already in use"]
        )
        sys.exit(1)
    say(["INFO:     Application startup complete."])
    server.serve_forever()


if __name__ == "__main__":
    main()
