"""How long answers are where a file may not say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.canonical import Json
from autotune.workload.formats.format import ReadOptions
from autotune.workload.formats.rows import Unusable, count


def output_tokens(data: Mapping[str, Json], keys: Sequence[str], options: ReadOptions) -> int:
    """The first of these fields, else what the user states for all.

    Raises Unusable: `missing_output_tokens`, `no_output`, `bad_<key>`.
    """
    for key in keys:
        if data.get(key) is not None:
            found = count(data, key)
            if found < 1:
                raise Unusable("no_output")
            return found
    if options.output_tokens is None:
        raise Unusable("missing_output_tokens")
    return options.output_tokens
