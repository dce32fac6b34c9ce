"""A test double of an inference server: standard library only, no model, answers by script.

It stands in for an engine in tests of how servers are started, watched and ended. It measures
nothing and its answers mean nothing.
"""

from __future__ import annotations

import argparse
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

PR_SET_NAME = 15
STARTED = time.monotonic()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="fake/model")
    parser.add_argument("--say", action="append", default=[], help="print this at start")
    parser.add_argument("--say-env", action="append", default=[], help="print this variable")
    parser.add_argument("--lines", type=int, default=0, help="print that many numbered lines")
    parser.add_argument("--waiting-line", help="print this every 0.1 s and never listen")
    parser.add_argument("--unready-for", type=float, default=0.0, help="completions answer 503")
    parser.add_argument("--exit-after", type=float, help="end by itself")
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--children", type=int, default=0, help="stubborn children holding locks")
    parser.add_argument("--lock", default="", help="lock file of the children, their GPU")
    parser.add_argument("--wiped-environment", action="store_true", help="children rewrite theirs")
    parser.add_argument("--requests", default="", help="append each request's path to this file")
    return parser.parse_args()


def stubborn_child(lock: str, number: int, wiped: bool) -> None:
    """Leave the session, take another name, ignore SIGTERM, hold the lock."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"innocent", 0, 0, 0)
    if wiped:  # as libraries do that set a process title: a fresh image without our variables
        loop = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        with Path(f"{lock}.{number}").open("w") as file:
            file.write(str(os.getpid()))
        os.execve(sys.executable, [sys.executable, "-c", loop], {})
    with Path(f"{lock}.{number}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))
        file.flush()
        time.sleep(600)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self.note()
        bodies = {
            "/health": {},
            "/version": {"version": "0.0-fake"},
            "/v1/models": {"object": "list", "data": [{"id": self.options.model}]},
        }
        if self.path in bodies:
            self.answer(200, bodies[self.path])
        else:
            self.answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        self.note()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if time.monotonic() - STARTED < self.options.unready_for:
            self.answer(503, {"error": "loading"})
        elif body.get("model") != self.options.model:
            self.answer(404, {"error": "no such model"})
        else:
            self.stream(body.get("max_tokens", 1))

    def stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(count):
            chunk = {"choices": [{"index": 0, "text": f" {number}", "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def note(self) -> None:
        if self.options.requests:
            with Path(self.options.requests).open("a") as file:
                file.write(self.path + "\n")


def main() -> None:
    options = parse()
    Handler.options = options
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for text in options.say:
        print(text, flush=True)
    for name in options.say_env:
        print(f"value of {name.lower()[:3]}: {os.environ.get(name)}", flush=True)
    for number in range(options.lines):
        print(f"line {number}", file=sys.stderr if number % 2 else sys.stdout, flush=True)
    for number in range(options.children):
        if os.fork() == 0:
            stubborn_child(options.lock, number, options.wiped_environment)
    if options.exit_after is not None:
        timer = threading.Timer(options.exit_after, lambda: os._exit(options.exit_code))
        timer.daemon = True
        timer.start()
    while options.waiting_line:
        print(options.waiting_line, flush=True)
        time.sleep(0.1)
    try:
        server = ThreadingHTTPServer((options.host, options.port), Handler)
    except OSError as error:
        print(
            f"ERROR: [Errno {error.errno}] error while attempting to bind: address already in use"
        )
        sys.exit(1)
    print("Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
