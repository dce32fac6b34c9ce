"""A task of the lm-eval harness, asked of a running server: the extra `autotune[quality]`.

The harness runs as a process of its own, so that it is bounded in time and can be ended; what it
scored is read from the samples that it writes. Command and files as in lm-eval 0.4.9 to 0.4.13.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.errors import InputError
from autotune.spec.model import QualitySpec

TOGETHER = 4
_LOOK_S = 0.2
_MODULE = "lm_eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """What a run of the task gave: document -> score (more is better), or why there is none."""

    scores: Mapping[str, float]
    problem: str | None = None


def require_harness() -> None:
    """Raises InputError unless the harness is installed."""
    if find_spec(_MODULE) is None:
        raise InputError(
            message="the check `lm-eval` needs the package lm-eval, which is not installed",
            so="nothing was started",
            hint='pip install "autotune[quality]", or `quality: {check: likelihood}`',
        )


def run_task(
    quality: QualitySpec,
    *,
    model: str,
    tokenizer: str,
    url: str,
    api_key: str | None,
    seconds: float,
    clock: Clock,
    stop: StopSignal,
) -> TaskRun:
    """Run the study's task against a server for at most `seconds`. `model`: its name there;
    `tokenizer`: folder or hub name of its tokenizer. Raises Interrupted (the process is ended).
    """
    with tempfile.TemporaryDirectory(prefix="autotune-lm-eval-") as scratch:
        folder = Path(scratch)
        words = _command(quality, model=model, tokenizer=tokenizer, url=url, folder=folder)
        environ = {**os.environ, "OPENAI_API_KEY": api_key or "none", "TOKENIZERS_PARALLELISM": "0"}
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                words, env=environ, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = _ended(process, seconds, clock, stop)
            finally:
                _end(process)
        if code is None:
            return TaskRun(scores={}, problem=f"lm-eval was not done after {seconds:.0f} s")
        if code != 0:
            return TaskRun(scores={}, problem=f"lm-eval ended with code {code}: {_last(folder)}")
        scores = dict(_scores(folder))
        return TaskRun(scores=scores, problem=None if scores else "lm-eval wrote no sample")


def _command(
    quality: QualitySpec, *, model: str, tokenizer: str, url: str, folder: Path
) -> list[str]:
    arguments = {
        "model": model,
        "base_url": f"{url.rstrip('/')}/v1/completions",
        "tokenizer": tokenizer,
        "num_concurrent": TOGETHER,
        "max_retries": 2,
    }
    task = str(quality.task)
    words = [sys.executable, "-m", _MODULE, "--model", "local-completions"]
    words += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    words += ["--tasks", task, "--output_path", str(folder / "out"), "--log_samples"]
    if quality.documents is not None:
        words += ["--limit", str(quality.documents)]
    return words


def _ended(
    process: subprocess.Popen[bytes], seconds: float, clock: Clock, stop: StopSignal
) -> int | None:
    """The exit code, or None when time was up first. Raises Interrupted."""
    until_s = clock.monotonic() + seconds
    while (code := process.poll()) is None and clock.monotonic() < until_s:
        stop.check()
        clock.sleep(_LOOK_S)
    return code


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(folder: Path) -> str:
    """The last words of the harness."""
    lines = (folder / "said").read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _scores(folder: Path) -> Iterator[tuple[str, float]]:
    """(task and document, score by the task's first metric) of every sample file."""
    for path in sorted((folder / "out").rglob("samples_*.jsonl")):
        task = path.name.removeprefix("samples_").rpartition("_")[0]
        for row in path.read_text(encoding="utf-8").split("\n"):
            sample: Mapping[str, Json] = json.loads(row) if row.strip() else {}
            for metric in sample.get("metrics", ())[:1]:
                value = sample.get(metric)
                if isinstance(value, int | float):
                    yield f"{task}/{sample['doc_id']}/{sample.get('filter', '')}", float(value)
