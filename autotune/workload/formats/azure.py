"""Azure LLM inference traces (2023, 2024): `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.

Published by Azure/AzurePublicDataset. Times have seven decimals and an optional zone; there is no
prefix or session information. The column `NumImages` of the 2025 traces is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autotune.workload.formats.cells import cell_count, csv_rows, header_of
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.instants import Instants
from autotune.workload.formats.rows import Unusable, check_lengths
from autotune.workload.trace import Request, Skipped

COLUMNS = {"timestamp", "contexttokens", "generatedtokens"}


class AzureFormat:
    """The csv files of AzurePublicDataset."""

    name = "azure"
    title = "Azure LLM inference traces (csv)"

    def sniff(self, head: Sequence[bytes]) -> float:
        return 1.0 if set(header_of(head)) >= COLUMNS else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        yield About(meta={"source": self.name})
        instants = Instants()
        for row in csv_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                inputs = cell_count(row.data, "contexttokens")
                outputs = cell_count(row.data, "generatedtokens")
                at_s = instants.of(row.data.get("timestamp", ""), "timestamp")
                check_lengths(inputs, outputs, 0, 1)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            yield Request(at_s=at_s, input_tokens=inputs, output_tokens=outputs, line=row.line)


FORMAT = AzureFormat()
