"""How well the forecast predicts what an H200 did: calibrated on one launch, asked for others.

Reads a folder with one JSON file per launch of vLLM 0.26 on an H200 (`default.json`,
...): idle probes and open-loop replays at several rates, with the effective limits and the machine
that it ran on. Prints per launch and rate the error of TTFT p50, p95 and TPOT p50, p95 in percent,
and the mean over the launches that were not calibrated on:

1. `default`'s probes and its own 5 rps replay, as a study's baseline gives them;
2. the same and one number for the speed of another machine of the same type (one idle 8192-token
   prompt there against one here);
3. as 2, with the probes of a second token budget (`mnbt512`), as the first far launch gives them.

The launches with 8-bit weights and KV cache are predicted from their own probes, since a 16-bit
launch says nothing of these. Run: `python benchmarks/predict_h200.py FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.replay.records import RequestRecord
from autotune.simulator.calibration import Fit, Sight, calibrate, latencies
from autotune.simulator.fast import run
from autotune.simulator.load import Limits, Load, jobs_at
from autotune.study.forecasting import probe_sights, request_samples
from autotune.study.probing import Answer, Probe, Shot

BASELINE, SECOND, EIGHT_BIT = "default", "mnbt512", "fp8_kvfp8"
BASELINE_RPS = 5
REFERENCE_PROMPT = 8192
MOST_RECORDED = 16
"""Of larger bursts only a part of the requests is in the files."""
METRICS = (("ttft", 0.5), ("ttft", 0.95), ("tpot", 0.5), ("tpot", 0.95))
BARS = {"1": 8.0, "2": 8.0, "3": 5.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One file of the data."""

    name: str
    data: Mapping[str, Any]

    @property
    def limits(self) -> Limits:
        effective = self.data["effective"]
        return Limits(
            budget=effective["max_num_batched_tokens"],
            seqs=effective["max_num_seqs"],
            kv_tokens=effective["kv_cache_tokens"],
        )

    def probes(self) -> list[Sight]:
        singles = [
            Probe(
                shot=Shot(prompt_tokens=p["prompt_tokens"], output_tokens=1),
                answers=(Answer(ttft_s=p["ttft_s"], e2e_s=p["ttft_s"]),),
            )
            for p in self.data["prefill"]
        ]
        bursts = [
            Probe(
                shot=Shot(
                    prompt_tokens=d["prompt_tokens"],
                    output_tokens=d["output_tokens"],
                    at_once=d["concurrency"],
                ),
                answers=tuple(
                    Answer(ttft_s=r["ttft_s"], e2e_s=r["e2e_s"], tpot_s=r["tpot_s"])
                    for r in d["requests"]
                ),
            )
            for d in self.data["decode"]
            if d["concurrency"] <= MOST_RECORDED
        ]
        return probe_sights([*singles, *bursts], self.limits)

    def replay(self, rps: float) -> Sight:
        """An open-loop replay as samples."""
        cell = next(c for c in self.data["open"] if c["rate_rps"] == rps)
        load = load_of(cell)
        records = [
            RequestRecord(
                index=i,
                due_s=sent_s,
                measured=True,
                planned_input_tokens=r["prompt_tokens"],
                planned_output_tokens=r["output_tokens"],
                output_tokens=r["output_tokens"],
                sent_s=sent_s,
                first_token_s=sent_s + r["ttft_s"],
                last_token_s=sent_s + r["e2e_s"],
            )
            for i, r in enumerate(cell["requests"])
            for sent_s in [r["due_s"] + r["send_lag_s"]]
        ]
        return Sight(load=load, limits=self.limits, samples=request_samples(load, records))

    def reference_s(self) -> float:
        """Median seconds of an idle prompt of `REFERENCE_PROMPT` tokens."""
        return statistics.median(
            p["ttft_s"] for p in self.data["prefill"] if p["prompt_tokens"] == REFERENCE_PROMPT
        )


def load_of(cell: Mapping[str, Any]) -> Load:
    rows = cell["requests"]
    return jobs_at(
        [r["due_s"] + r["send_lag_s"] for r in rows],
        [r["prompt_tokens"] for r in rows],
        [r["output_tokens"] for r in rows],
    )


def errors_of(launch: Launch, fit: Fit, factor: float) -> list[tuple[int, list[float]]]:
    """(rate, errors as shares in the order of `METRICS`) of each replay. `factor`: prefill is so
    many times as slow on this machine.
    """
    shift = dict.fromkeys(("b", "c"), math.log(factor))
    found = []
    for cell in launch.data["open"]:
        load = load_of(cell)
        times = run(load, launch.limits, fit.pace((), shift))
        errors = []
        for what, share in METRICS:
            simulated = latencies(load, times, what)
            measured = sorted(r[f"{what}_s"] for r in cell["requests"])
            rank = int(share * len(measured))
            errors.append(simulated[rank] / measured[rank] - 1)
        found.append((cell["rate_rps"], errors))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    launches = {
        path.stem: Launch(name=path.stem, data=json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("*.json"))
    }
    first = [*launches[BASELINE].probes(), launches[BASELINE].replay(BASELINE_RPS)]
    began = time.monotonic()
    alone = calibrate(first)
    spent_s = time.monotonic() - began
    both = calibrate([*first, *launches[SECOND].probes()])
    eight = calibrate(launches[EIGHT_BIT].probes())
    factors = {
        name: launch.reference_s() / launches[BASELINE].reference_s()
        for name, launch in launches.items()
    }
    here = launches[BASELINE].data["machine"]
    columns: dict[str, dict[str, list[tuple[int, list[float]]]]] = {"1": {}, "2": {}, "3": {}}
    for name, launch in launches.items():
        own = name == EIGHT_BIT
        # One factor for a machine, from the launch whose probes it is known by
        factor = 1.0 if launch.data["machine"] == here else _machine(factors, launches, launch)
        columns["1"][name] = errors_of(launch, eight if own else alone, 1.0)
        columns["2"][name] = errors_of(launch, eight if own else alone, factor)
        columns["3"][name] = errors_of(launch, eight if own else both, factor)
    _print(launches, columns)
    print(f"one calibration took {spent_s:.1f} s")


def _machine(factors: Mapping[str, float], launches: Mapping[str, Launch], launch: Launch) -> float:
    """The other machine's factor: by the launch there with the largest budget, whose prompts are
    computed in one step as here.
    """
    there = [n for n in launches if launches[n].data["machine"] == launch.data["machine"]]
    return factors[max(there, key=lambda n: launches[n].limits.budget)]


def _print(
    launches: Mapping[str, Launch],
    columns: Mapping[str, Mapping[str, Sequence[tuple[int, Sequence[float]]]]],
) -> None:
    heads = {"1": "default alone", "2": "+ machine", "3": "+ second budget"}
    print(f"{'launch':<14}{'rps':>4}" + "".join(f"{heads[c]:>26}" for c in columns))
    for name in launches:
        for i, (rps, _) in enumerate(columns["1"][name]):
            cells = (
                " ".join(f"{100 * e:+4.0f}" for e in column[name][i][1])
                for column in columns.values()
            )
            print(f"{name:<14}{rps:>4}" + "".join(f"{cell:>26}" for cell in cells))
    for title, chosen in (
        ("not calibrated on", [n for n in launches if n != BASELINE]),
        ("of these 16 bit", [n for n in launches if n not in (BASELINE, EIGHT_BIT)]),
        ("of these here", [n for n in launches if n not in (BASELINE, EIGHT_BIT)
                           and launches[n].data["machine"] == launches[BASELINE].data["machine"]]),
    ):  # fmt: skip
        print(f"mean, {title:<20}", end="")
        for key, column in columns.items():
            errors = [abs(e) for n in chosen for _, row in column[n] for e in row]
            verdict = "met" if 100 * statistics.fmean(errors) <= BARS[key] else "MISSED"
            mean = f"{100 * statistics.fmean(errors):.1f} % (bar {BARS[key]:.0f}: {verdict})"
            print(f"{mean:>26}", end="")
        print()


if __name__ == "__main__":
    main()
