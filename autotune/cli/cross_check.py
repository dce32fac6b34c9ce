"""`replay --compare-vllm-bench`: the same traffic again through `vllm bench serve`, side by side.

Names differ: their TTFT is our `ttft_service`, both from the send; their percentiles interpolate,
ours do not; they drop failures, ours count them as infinite. Throughput is not compared: theirs has
the drain in its denominator.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.canonical import Json
from autotune.errors import EnvironmentFault, InputError
from autotune.measure.measurement import Measurement
from autotune.workload.trace import Trace

PAIRS: Mapping[str, str] = {
    "ttft_service_mean_s": "mean_ttft_ms",
    "ttft_service_p50_s": "p50_ttft_ms",
    "ttft_service_p95_s": "p95_ttft_ms",
    "ttft_service_p99_s": "p99_ttft_ms",
    "tpot_mean_s": "mean_tpot_ms",
    "tpot_p50_s": "p50_tpot_ms",
    "tpot_p95_s": "p95_tpot_ms",
    "tpot_p99_s": "p99_tpot_ms",
}
"""Our key -> theirs (milliseconds)."""
START_S = 120.0
"""Their program may take so long to import and load a tokenizer."""
BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric by both clients, seconds; `theirs` None where they did not report it."""

    key: str
    ours: float | None
    theirs: float | None

    @property
    def seconds(self) -> float | None:
        """Theirs minus ours."""
        if self.ours is None or self.theirs is None:
            return None
        return self.theirs - self.ours

    @property
    def share(self) -> float | None:
        """The difference over our figure."""
        return self.seconds / self.ours if self.seconds is not None and self.ours else None


def find_bench(command: str | None) -> str:
    """The `vllm` program. Raises EnvironmentFault where there is none."""
    found = shutil.which(command or "vllm")
    if found is None:
        raise EnvironmentFault(
            message=f"the program {command or 'vllm'} is not here, so there is nothing to compare",
            so="nothing was sent",
            hint="install vLLM, or name its program: --bench-command PATH/bin/vllm",
        )
    return found


def cross_check(
    measurement: Measurement,
    trace: Trace,
    *,
    program: str,
    url: str,
    model: str,
    tokenizer: str | None,
    folder: Path,
    patience_s: float,
) -> list[Difference]:
    """Send the trace's lengths and times again through their client (other random tokens) and
    compare. `patience_s`: how long the replay itself may take.

    Raises InputError for a workload their client cannot send, EnvironmentFault if it fails.
    """
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in timed_rows(trace)), encoding="utf-8")
    command = [
        program, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", model,
        *(["--tokenizer", tokenizer] if tokenizer else []),
        "--dataset-name", "timed_trace", "--dataset-path", str(path),
        "--timed-trace-chunk-hash-size", str(trace.block_size or BLOCK),
        "--num-prompts", str(len(trace.requests)), "--percentile-metrics", "ttft,tpot,e2el",
        "--metric-percentiles", "50,95,99", "--save-result", "--result-dir", str(folder),
        "--result-filename", "bench.json", "--disable-tqdm",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=START_S + patience_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            message="`vllm bench serve` did not end", seen=f"waited {error.timeout:.0f} s"
        ) from error
    result = folder / "bench.json"
    if done.returncode or not result.is_file():
        lines = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise EnvironmentFault(
            message="`vllm bench serve` failed",
            seen=lines[-1],
            hint=None if tokenizer else "it needs the model's tokenizer: --tokenizer FOLDER",
        )
    found = json.loads(result.read_text(encoding="utf-8"))
    return differences(measurement, found)


def differences(measurement: Measurement, found: Mapping[str, Json]) -> list[Difference]:
    """Our figures beside those of their result file."""
    rows = []
    for key, name in PAIRS.items():
        value = found.get(name)
        theirs = value / 1000 if isinstance(value, int | float) else None
        rows.append(Difference(key=key, ours=measurement.metrics.get(key), theirs=theirs))
    return rows


def timed_rows(trace: Trace) -> list[dict[str, Json]]:
    """The trace as rows of their `timed_trace` data set: seconds, lengths, one id per block."""
    block = trace.block_size or BLOCK
    fresh = 1 << 40
    rows: list[dict[str, Json]] = []
    for request in trace.requests:
        if request.messages:
            raise InputError(
                message="`vllm bench serve` replays lengths, not a workload's own messages",
                so="the two clients would send different work",
            )
        wanted = -(-request.input_tokens // block)
        ids = list(request.blocks)[:wanted]
        while len(ids) < wanted:  # what is not shared with any other request
            fresh += 1
            ids.append(fresh)
        rows.append(
            {
                "timestamp": request.at_s,
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": ids,
            }
        )
    return rows


def table(rows: Sequence[Difference]) -> str:
    """The differences for people."""
    lines = [f"{'beside vllm bench serve':<24}{'autotune':>12}{'vllm':>12}{'difference':>24}"]
    for name, ours, theirs, gap in cells(rows):
        lines.append(f"  {name:<22}{ours:>12}{theirs:>12}{gap:>24}")
    return "\n".join(lines)


def cells(rows: Sequence[Difference]) -> list[tuple[str, str, str, str]]:
    """The differences as text: metric, ours, theirs, difference."""
    return [(row.key.removesuffix("_s"), _ms(row.ours), _ms(row.theirs), _gap(row)) for row in rows]


def as_json(rows: Sequence[Difference]) -> list[Json]:
    """The differences for scripts, in seconds."""
    return [
        {"metric": row.key, "autotune": row.ours, "vllm_bench": row.theirs,
         "difference": row.seconds}
        for row in rows
    ]  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f} ms"


def _gap(row: Difference) -> str:
    if row.seconds is None:
        return "-"
    share = f" ({row.share:+.1%})" if row.share is not None else ""
    return f"{1000 * row.seconds:+.2f} ms{share}"
