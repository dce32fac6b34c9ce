"""vLLM timed trace jsonl: the fields of Mooncake with 16-token blocks.

What `vllm bench serve --dataset-name timed_trace` reads with its default labels and its default
`--timed-trace-chunk-hash-size`. Told from Mooncake by the number of ids per prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.canonical import Json
from autotune.workload.formats import mooncake
from autotune.workload.formats.format import Item, Line, ReadOptions
from autotune.workload.formats.rows import objects_of

BLOCK_SIZE = 16
FIELDS = {"timestamp", "input_length", "output_length", "hash_ids"}


class VllmTimedFormat:
    """Timed traces of vLLM's own benchmark."""

    name = "vllm_timed"
    title = "vLLM timed trace jsonl (as Mooncake, 16-token block hashes)"

    def sniff(self, head: Sequence[bytes]) -> float:
        rows = [row for row in objects_of(head) if row.keys() >= FIELDS]
        small = sum(_fits(row, BLOCK_SIZE) for row in rows)
        large = sum(_fits(row, mooncake.BLOCK_SIZE) for row in rows)
        bailian = any("parent_chat_id" in row for row in rows)
        return 0.95 if small > large and 2 * small > len(rows) and not bailian else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        return mooncake.read_rows(lines, options, name=self.name, block_size=BLOCK_SIZE)


def _fits(row: Mapping[str, Json], block_size: int) -> bool:
    """Whether a row has one id per started block of this size."""
    length, ids = row["input_length"], row["hash_ids"]
    whole = isinstance(length, int) and isinstance(ids, list)
    return whole and len(ids) == -(-length // block_size) > 0


FORMAT = VllmTimedFormat()
