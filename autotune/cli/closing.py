"""The last block of a run on the terminal: the verdict in the report's own words."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.cli.front_table import front_table
from autotune.cli.handover import trial_to_run
from autotune.report.first_screen import goal_rows
from autotune.report.numbers import duration
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView
from autotune.study.early_totals import saving
from autotune.study.events import wall_seconds

WORDS = {
    "better": "BETTER",
    "not_distinguishable": "NOT DISTINGUISHABLE",
    "keep_baseline": "KEEP",
    "no_feasible": "NOTHING FITS",
}


def closing_block(view: StudyView, stopped_because: str) -> RenderableType:
    """Verdict, goal and limits, what it cost, and the next commands."""
    story = tell(view)
    word = WORDS.get(view.verdict.verdict, "") if view.verdict else ""
    if view.verdict and view.verdict.verdict == "better" and not view.verdict.confirmed:
        word = "PROMISING"
    if word == WORDS["keep_baseline"] and not any(t.record.role == "search" for t in view.measured):
        word = ""  # the headline says that nothing else was measured
    head = Text(f"{word}: " if word else "", style="bold")
    head.append(story.headline + ".", style="bold")
    parts: list[RenderableType] = [head]
    parts += [Text(sentence) for sentence in story.sentences]
    rows = goal_rows(view)
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
        for title, justify in (("", "left"), ("today", "right"), ("new", "right"),
                               ("change", "left"), ("limit", "left")):  # fmt: skip
            table.add_column(title, justify=justify, header_style="dim")  # type: ignore[arg-type]
        for row in rows:
            table.add_row(
                row.label, row.today, row.new, row.change, f"{row.target}  {row.state}".strip()
            )
        parts += [Text(), table]
    front = front_table(view)
    if front is not None:
        parts += [Text(), Text("Beaten by no other setting in every goal:"), front]
    parts += [Text(), Text(f"  {_cost(view)}; {stopped_because}"), *_commands(view)]
    return Group(*parts)


def _cost(view: StudyView) -> str:
    records = [trial.record for trial in view.trials]
    # Launches may have run at the same time; an old study's log may be lost
    total = wall_seconds((event.kind, event.elapsed_s) for event in view.events)
    total = total or sum(record.seconds.get("total", 0.0) for record in records)
    counts = {
        "measured": sum(r.state == "measured" for r in records),
        "ended early": sum(bool(r.stopped_early) for r in records),
        "failed": sum(r.state == "infeasible" and not r.stopped_early for r in records),
        "without a verdict": sum(r.state == "unmeasurable" for r in records),
        "interrupted": sum(r.state == "interrupted" for r in records),
    }
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    saved = float(saving(records)["saved_s"])
    early = f" (about {duration(saved)} saved)" if saved else ""
    return f"{len(records)} launches in {duration(total)}: {shown}{early}"


def _commands(view: StudyView) -> list[RenderableType]:
    folder = view.directory
    lines = []
    if trial_to_run(view) is not None:
        lines.append(("run", f"bash {folder}/best/launch.sh"))
        if (folder / "best" / "rollback.sh").exists():
            lines.append(("back", f"bash {folder}/best/rollback.sh"))
    lines.append(("report", f"{folder}/report.html"))
    if trial_to_run(view) is not None:
        lines.append(("check", f"autotune verify {folder}"))
    if view.verdict is not None and view.verdict.interrupted:
        lines.append(("go on", f"autotune resume {folder}"))
    return [Text(f"  {name:<8} {value}") for name, value in lines]
