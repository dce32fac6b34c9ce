"""How long it takes to look at a large recording, and how much memory.

Writes a Mooncake file of a million rows (`--rows`) with the traits of the public conversation
trace: about 24 ids of 512-token blocks per row, all prompts under one system block, sessions that
grow, a third of the blocks found again, arrivals in 3 s buckets. `--from FILE` repeats a real trace
instead, shifting its times and ids. Then a fresh process reads it as `autotune workload inspect`
does. The bar: a million rows in 20 s and 500 MiB.

    python benchmarks/workload_inspect.py [--rows 1000000] [--from trace.jsonl]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

BAR_S, BAR_MIB, BAR_ROWS = 20.0, 500.0, 1_000_000
BLOCK = 512
CHILD = """
import json, resource, sys, time
from pathlib import Path
began = time.perf_counter()
from autotune.workload.columns import read_columns
from autotune.workload.statistics import describe_columns
told = describe_columns(read_columns(Path(sys.argv[1])))
told["seconds"] = time.perf_counter() - began
told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(told))
"""


def made_up(rows: int) -> Iterator[bytes]:
    """Rows with the structure of the public conversation trace."""
    rng = random.Random(1)
    following = 1
    open_sessions: list[list[int]] = []
    for index in range(rows):
        millis = index // 10 * 3000
        if open_sessions and rng.random() < 0.45:
            ids = open_sessions[rng.randrange(len(open_sessions))]
        else:
            ids = [0]
            open_sessions.append(ids)
            if len(open_sessions) > 2000:
                open_sessions.pop(rng.randrange(1000))
        grown = min(250, max(1, round(math.exp(rng.gauss(2.45, 0.9)))))
        if len(ids) + grown > 250:
            del ids[1:]
        fresh = range(following, following + grown)
        following += grown
        ids.extend(fresh)
        length = len(ids) * BLOCK - rng.randrange(BLOCK)
        yield b'{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}\n' % (
            millis, length, rng.randint(1, 700), json.dumps(ids).encode(),
        )  # fmt: skip


def repeated(source: Path, rows: int) -> Iterator[bytes]:
    """A real trace again and again, each time later and with ids of its own."""
    recorded = [json.loads(line) for line in source.read_bytes().splitlines()]
    span = recorded[-1]["timestamp"] + 3000
    width = 1 + max(max(row["hash_ids"], default=0) for row in recorded)
    for index in range(rows):
        turn, place = divmod(index, len(recorded))
        row = recorded[place]
        shifted = {
            **row,
            "timestamp": row["timestamp"] + turn * span,
            "hash_ids": [block + turn * width for block in row["hash_ids"]],
        }
        yield json.dumps(shifted).encode() + b"\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=BAR_ROWS)
    parser.add_argument("--from", dest="source", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        rows = repeated(options.source, options.rows) if options.source else made_up(options.rows)
        began = time.perf_counter()
        with path.open("wb") as file:
            file.writelines(rows)
        size_mib = path.stat().st_size / 2**20
        print(f"written in {time.perf_counter() - began:.1f} s, {size_mib:.0f} MiB")
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True
        )
    told = json.loads(done.stdout)
    heads = ("rows", "seconds", "rows/s", "peak MiB", "input tokens", "reuse")
    print("{:>10} {:>8} {:>9} {:>9} {:>16} {:>7}".format(*heads))
    speed = told["requests"] / told["seconds"]
    print(
        f"{told['requests']:>10,} {told['seconds']:>8.2f} {speed:>9,.0f} "
        f"{told['peak_mib']:>9.0f} {told['input_tokens_total']:>16,} {told['prefix_reuse']:>7.1%}"
    )
    share = told["requests"] / BAR_ROWS
    met = told["seconds"] <= BAR_S * share and told["peak_mib"] <= BAR_MIB
    print(f"bar: {BAR_S * share:.3g} s, {BAR_MIB:.0f} MiB: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
