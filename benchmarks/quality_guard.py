"""The guard on answers against a real engine: how often it refuses an identical server, and which
damage it sees.

    python benchmarks/quality_guard.py --vllm VENV --model FOLDER
        [--launches 5] [--checks 50] [--seconds 20] [--damage noise:0.02,bits:8] [--flags ...]

Launches the model several times: the first launch gives the reference, `checks` checks are spread
over the others, each with the default settings of a study. Then copies of the model with damaged
weights (`noise:S`: normal noise of S standard deviations on every matrix but the embedding;
`bits:N`: rounded to N bits in groups of 64) and the untouched model with each of `flags` (such as
`--kv-cache-dtype=fp8`) are checked once. Needs a model in bfloat16 safetensors and a vLLM in the
virtual environment `VENV` (`tests/real_engine/setup.sh` makes both; minutes on two cores).

The share of refused checks of the identical model has the 95 % upper end of Clopper and Pearson.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.stats import beta

from autotune.clock import StopSignal, SystemClock
from autotune.engines.facts import engine_facts
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.launch.catalog import launcher_for
from autotune.launch.launcher import RunningServer, Ticket
from autotune.launch.readiness import NotReady, log_tail, wait_ready
from autotune.measure.built_in_texts import built_in
from autotune.spec.model import QualitySpec
from autotune.study.answers import AnswerReader, Questions, Reading
from autotune.study.passages import passages_of
from autotune.study.quality import compare
from autotune.workload.trace import Trace

Damage = Callable[[np.ndarray], np.ndarray]
CLOCK, STOP = SystemClock(), StopSignal()
HEAD = (
    f"{'server':<28}{'checks':>7}{'refused':>9}{'loss %':>9}{'low':>9}{'high':>9}{'texts':>7}"
    f"{'agree':>7}{'s':>6}  verdict"
)


def noise(spread: float) -> Damage:
    rng = np.random.default_rng(0)
    return lambda w: w + spread * w.std() * rng.standard_normal(w.shape, dtype=np.float32)


def bits(count: float, group: int = 64) -> Damage:
    def rounded(weights: np.ndarray) -> np.ndarray:
        rows = weights.reshape(-1, group)
        largest = np.abs(rows).max(axis=1, keepdims=True) + 1e-12
        steps = 2 ** (int(count) - 1) - 1
        return (np.round(rows / largest * steps) / steps * largest).reshape(weights.shape)

    return rounded


def damaged_copy(model: Path, folder: Path, damage: Damage) -> Path:
    """A copy of a model whose matrices went through `damage` (bfloat16 safetensors, one file)."""
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder / path.name)
    data = bytearray((model / "model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    for name, about in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__" or len(about["shape"]) != 2 or "embed" in name:
            continue
        if about["dtype"] != "BF16":
            raise SystemExit(f"{name} is {about['dtype']}: only bfloat16 can be damaged")
        begin, end = (8 + length + offset for offset in about["data_offsets"])
        halves = np.frombuffer(bytes(data[begin:end]), dtype="<u2").astype("<u4") << 16
        weights = damage(halves.view("<f4").reshape(about["shape"])).astype("<f4")
        # To the nearest bfloat16
        raw = np.ascontiguousarray(weights).view("<u4") + 0x8000
        data[begin:end] = (raw >> 16).astype("<u2").tobytes()
    (folder / "model.safetensors").write_bytes(data)
    return folder


@contextmanager
def serving(program: Path, model: Path, flags: list[str]) -> Iterator[RunningServer]:
    """The model behind a real vLLM, ready to be asked."""
    words = ("--max-model-len", "2048", "--enforce-eager", "--served-model-name", "m", *flags)
    plan = LaunchPlan(
        engine="vllm",
        launcher="process",
        model="m",
        argv=(str(program), "serve", str(model), "--host", HOST, "--port", PORT, *words),
        env={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    launcher = launcher_for("process", clock=CLOCK, stop=STOP)
    with tempfile.TemporaryDirectory() as folder:
        ticket = Ticket(study_id="quality-guard", trial=0, directory=Path(folder))
        server = launcher.start(plan, ticket)
        try:
            wait_ready(server, timeout_s=600, clock=CLOCK, stop=STOP)
            yield server
        except NotReady as failure:
            raise SystemExit(f"{failure}\n" + "\n".join(log_tail(server.log_path, 20))) from None
        finally:
            server.stop()


def row(name: str, found: list[tuple[str, dict[str, float]]], seconds: float) -> None:
    refused = sum(verdict != "passed" for verdict, _ in found)
    worst = max((numbers for _, numbers in found), key=lambda numbers: numbers["loss_high"] or 0)
    loss, low, high = (100 * worst[key] for key in ("loss", "loss_low", "loss_high"))
    print(
        f"{name:<28}{len(found):>7}{refused:>9}{loss:>9.3f}{low:>9.3f}{high:>9.3f}"
        f"{worst['passages']:>7}{worst['agreement']:>7.2f}{seconds:>6.0f}  "
        + ", ".join(sorted({verdict for verdict, _ in found})),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--checks", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--damage", default="noise:0.01,noise:0.05,bits:8,bits:4")
    parser.add_argument("--flags", action="append", default=[])
    args = parser.parse_args()
    program, quality = args.vllm / "bin" / "vllm", QualitySpec(time=args.seconds)
    passages, texts = passages_of(Trace(requests=()), "benchmark")
    form = engine_facts("vllm").asks_likelihood(None)
    questions = Questions(
        engine="vllm", passages=passages, texts=texts, form=form, tokenizer=str(args.model)
    )
    reader = AnswerReader(questions, quality, clock=CLOCK, stop=STOP)

    def checks(server: RunningServer, reference: Reading, count: int, name: str) -> int:
        began, found = CLOCK.monotonic(), []
        for _ in range(count):
            finding, numbers = compare(quality, reference, reader.read(server, quality.seconds))
            found.append((finding.verdict, numbers))
        row(name, found, (CLOCK.monotonic() - began) / count)
        return sum(verdict != "passed" for verdict, _ in found)

    print(f"{len(built_in())} built-in texts, at most {quality.seconds:.0f} s a check, limit "
          f"{100 * quality.limit:g} %; of several checks the worst is shown\n\n{HEAD}")  # fmt: skip
    with serving(program, args.model, []) as server:
        reference = reader.read(server, quality.seconds)
    refused = done = 0
    for launch in range(1, args.launches):
        count = (args.checks - done) // (args.launches - launch)
        with serving(program, args.model, []) as server:
            refused += checks(server, reference, count, f"identical, launch {launch}")
        done += count
    upper = beta.ppf(0.975, refused + 1, done - refused) if refused < done else 1.0
    print(f"{'identical, all':<28}{done:>7}{refused:>9}   false alarms {refused / done:.1%}, "
          f"at most {upper:.1%} (95 %)")  # fmt: skip
    makers = {"noise": noise, "bits": bits}
    for text in filter(None, args.damage.split(",")):
        kind, _, amount = text.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            copy = damaged_copy(args.model, Path(folder), makers[kind](float(amount)))
            with serving(program, copy, []) as server:
                checks(server, reference, 1, text)
    for flag in args.flags:
        with serving(program, args.model, flag.split()) as server:
            checks(server, reference, 1, flag)


if __name__ == "__main__":
    main()
