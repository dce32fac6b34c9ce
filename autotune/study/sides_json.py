"""A study across engines as a mapping that reads back as a study file: what the engines share once,
the rest by kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.canonical import Json, canonical_json


def merged_specs(specs: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """One study of several, each as `snapshot.spec_json` gives it, the baseline's engine first."""
    kinds = [spec["engine"]["kind"] for spec in specs]
    engine: dict[str, Json] = {"kind": kinds}
    for name in dict.fromkeys(name for spec in specs for name in spec["engine"]):
        if name != "kind":
            values = {
                kind: spec["engine"][name]
                for kind, spec in zip(kinds, specs, strict=True)
                if name in spec["engine"]
            }
            engine[name] = _shared(values, len(kinds))
    return {
        **specs[0],
        "engine": engine,
        "baseline": {k: spec["baseline"] for k, spec in zip(kinds, specs, strict=True)},
        "space": {k: spec["space"] for k, spec in zip(kinds, specs, strict=True)},
    }


def _shared(values: Mapping[str, Json], engines: int) -> Json:
    """The one value that all have, else each engine's own."""
    if len(values) == engines and len({canonical_json(v) for v in values.values()}) == 1:
        return next(iter(values.values()))
    return dict(values)
