"""vLLM custom jsonl: `prompt` and, if known, `output_tokens`; no times.

What `vllm bench serve --dataset-name custom` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.outputs import output_tokens
from autotune.workload.formats.rows import Unusable, json_rows, objects_of, text_in
from autotune.workload.formats.text import Texts
from autotune.workload.trace import Request, Skipped


class VllmCustomFormat:
    """Prompts with answer lengths."""

    name = "vllm_custom"
    title = "vLLM custom jsonl (prompt, output_tokens; no times)"

    def sniff(self, head: Sequence[bytes]) -> float:
        rows = objects_of(head)
        if any({"prompt", "output_tokens"} <= row.keys() for row in rows):
            return 0.9
        return 0.4 if rows and all(row.keys() == {"prompt"} for row in rows) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        texts = Texts(options)
        yield About(block_size=texts.block_size, untimed=True, meta={"source": self.name})
        for row in json_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                prompt = texts.prompt([("", text_in(row.data, "prompt"))])
                outputs = output_tokens(row.data, ("output_tokens",), options)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            yield Request(
                at_s=0.0,
                input_tokens=prompt.tokens,
                output_tokens=outputs,
                blocks=prompt.blocks,
                line=row.line,
                messages=prompt.messages,
            )
        yield texts.about()


FORMAT = VllmCustomFormat()
