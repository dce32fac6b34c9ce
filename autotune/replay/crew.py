"""The worker processes of one replay, seen from the parent: start, listen, stop, collect."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import orjson

import autotune
from autotune.canonical import Json
from autotune.errors import InputError, Untrustworthy
from autotune.replay.records import ReplayProgress
from autotune.replay.shard import WorkerReport, read_report

_LOG_FILE = "worker.log"


class _Worker:
    """One child process in its own session, so that Ctrl-C in the terminal does not reach it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready = False
        self.progress: Mapping[str, Json] = {}
        self._rest = b""
        with (folder / _LOG_FILE).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "autotune.replay.worker", str(folder)],
                env=worker_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        os.set_blocking(self._out, False)

    @property
    def _out(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def listen(self) -> None:
        """Take what the worker has said since the last time."""
        try:
            while data := os.read(self._out, 65536):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    if line == b"ready":
                        self.ready = True
                    else:
                        self.progress = orjson.loads(line)
        except BlockingIOError:
            return

    def order(self, line: str) -> None:
        """Send one line; a worker that is gone has no need of it."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")
        except BrokenPipeError:
            return

    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it and whatever it started, and reap it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def release(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """The last line of its error output."""
        lines = (self.folder / _LOG_FILE).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def worker_environment() -> dict[str, str]:
    """Ours, with this very package importable. The worker does not look for modules in the current
    folder (-P): a user's folder may well hold an `http/` or a `json.py`.
    """
    environment = dict(os.environ)
    root = str(Path(autotune.__file__).resolve().parent.parent)
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{before}{os.pathsep}{root}" if before else root
    return environment


class Crew:
    """All workers of a replay. Leaving the context kills what still runs."""

    def __init__(self, folders: Sequence[Path], api_key_env: str | None) -> None:
        if api_key_env is not None and not os.environ.get(api_key_env):
            raise InputError(
                message=f"the environment variable {api_key_env} is not set",
                seen="the API key of the server is to be read from it",
                hint=f"export {api_key_env}=... and start again",
            )
        self._folders = folders
        self._workers: list[_Worker] = []

    def __enter__(self) -> Crew:
        try:
            for folder in self._folders:
                self._workers.append(_Worker(folder))
        except OSError:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for worker in self._workers:
            worker.release()

    def ready(self) -> bool:
        """Whether every worker waits for the start. Raises Untrustworthy if one has died."""
        for worker in self._workers:
            worker.listen()
            self._check(worker)
        return all(worker.ready for worker in self._workers)

    def start(self, instant: float) -> None:
        """Give all workers the same absolute monotonic start."""
        for worker in self._workers:
            worker.order(f"start {instant!r}")

    def stop(self, reason: str) -> None:
        """Ask all workers to end early: `stopped` or `server_died`."""
        for worker in self._workers:
            worker.order(f"stop {reason}")

    def measured(self) -> bool:
        """Whether the last measured request of all workers has ended."""
        return all(worker.progress.get("left") == 0 for worker in self._workers)

    def enough(self) -> None:
        """Tell all workers that their background may end."""
        for worker in self._workers:
            worker.order("enough")

    def finished(self) -> bool:
        """Whether every worker has ended. Raises Untrustworthy if one has broken."""
        for worker in self._workers:
            worker.listen()
            self._check(worker)
        return all(worker.status() is not None for worker in self._workers)

    def kill(self) -> None:
        """End all workers now."""
        for worker in self._workers:
            worker.kill()

    def progress(self, *, elapsed_s: float, total_s: float, planned: int) -> ReplayProgress:
        """The workers' counts added up; of their running p95s the larger."""
        told = [worker.progress for worker in self._workers if worker.progress]

        def worst(key: str) -> float | None:
            return max((p[key] for p in told if p[key] is not None), default=None)

        return ReplayProgress(
            elapsed_s=max(0.0, elapsed_s),
            total_s=total_s,
            sent=sum(p["sent"] for p in told),
            finished=sum(p["finished"] for p in told),
            failed=sum(p["failed"] for p in told),
            planned=planned,
            ttft_p95_s=worst("ttft_p95_s"),
            tpot_p95_s=worst("tpot_p95_s"),
        )

    def reports(self) -> list[WorkerReport]:
        """What the workers left behind. Raises Untrustworthy if one left nothing."""
        reports = []
        for worker in self._workers:
            report = read_report(worker.folder)
            if report is None:
                raise Untrustworthy(
                    message="a replay worker process left no records",
                    seen=worker.last_words(),
                    so="the measurement is void",
                )
            reports.append(report)
        return reports

    def _check(self, worker: _Worker) -> None:
        status = worker.status()
        if status not in (None, 0):
            raise Untrustworthy(
                message="a replay worker process broke",
                seen=f"exit status {status}: {worker.last_words()}",
                so="the measurement is void",
            )
