"""The words around the launch: the header of every file, and numbers as text."""

from __future__ import annotations

from autotune.deploy.facts import DeployFacts, Interval, MetricFact
from autotune.engines.plan import LaunchPlan

HEADLINE = 3
_UNITS = {
    "s": (1000.0, " ms"),
    "ratio": (100.0, " %"),
    "per_s": (1.0, "/s"),
    "tokens_per_s": (1.0, " tokens/s"),
    "bytes": (2.0**-30, " GiB"),
    "watts": (1.0, " W"),
    "joules": (1.0, " J"),
    "times": (1.0, " x"),
}
_LONG_S = 10.0


def one_line(text: str) -> str:
    """Text from outside on one line, control characters gone, so that it can end no comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def amount(value: float | None, unit: str) -> str:
    """A number with its unit, four significant digits; `not measured` for None."""
    if value is None:
        return "not measured"
    factor, suffix = _UNITS.get(unit, (1.0, ""))
    if unit == "s" and abs(value) >= _LONG_S:
        factor, suffix = 1.0, " s"
    return f"{_digits(value * factor)}{suffix}"


def with_interval(value: float | None, interval: Interval | None, unit: str) -> str:
    """`412 ms [398 ms, 431 ms]`; the interval is left out where there is none."""
    text = amount(value, unit)
    if value is None or interval is None:
        return text
    low, high = (("open" if end is None else amount(end, unit)) for end in interval)
    return f"{text} [{low}, {high}]"


def measured(fact: MetricFact, *, beside: bool = True) -> str:
    """One metric, beside the baseline's where that was measured."""
    text = f"{fact.name} {with_interval(fact.value, fact.interval, fact.unit)}"
    if beside and fact.baseline is not None:
        other = with_interval(fact.baseline, fact.baseline_interval, fact.unit)
        text += f"; baseline {other}"
    return text


def header(plan: LaunchPlan, facts: DeployFacts, differs: str) -> list[str]:
    """The lines on top of every file, without comment marks. `differs`: how this file's launch is
    not the measured one, word for word.
    """
    best = "best settings" if facts.changed else "today's settings, kept"
    what = {"best": best, "baseline": "the way back to the baseline"}
    title = f"{facts.study}, trial {facts.trial}: {what.get(facts.role, 'settings of one trial')}"
    engine = f"{facts.engine} {facts.engine_version or '(version unknown)'}"
    if plan.image is not None:
        engine += f", image {plan.image} ({facts.image_digest or 'no registry digest'})"
    machine = ", ".join(
        part for part in (facts.gpu, facts.driver and f"driver {facts.driver}") if part
    )
    workload = f"workload {facts.workload or 'unnamed'} {facts.workload_digest or ''}"
    folder = facts.directory or "STUDY_DIRECTORY"
    lines = [
        title + (f" ({facts.marks})" if facts.marks else ""),
        facts.verdict,
        *(f"measured: {measured(fact)}" for fact in facts.metrics[:HEADLINE]),
        f"engine: {engine}",
        f"model: {facts.model}, revision {facts.model_revision or 'not pinned'}",
        f"machine: {machine or 'no GPU recorded'}",
        f"date: {facts.date}; autotune {facts.tool_version}; {workload}",
        f"differs from the measured launch: {differs}",
        f"check it: autotune verify {folder}",
        "go back: rollback.sh" if facts.role != "baseline" else "forward again: launch.sh",
        "generated; edits are not kept by `autotune script`",
    ]
    if facts.simulated:
        lines.insert(1, "SIMULATED: the numbers come from a simulated engine, not from a GPU")
    if not facts.confirmed:
        lines.insert(1, "UNCONFIRMED: not measured again after the search; may be luck")
    return [one_line(line) for line in lines]


def commented(lines: list[str], mark: str = "#") -> str:
    """Lines as comment lines."""
    return "".join(f"{mark} {line}".rstrip() + "\n" for line in lines)


def _digits(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
