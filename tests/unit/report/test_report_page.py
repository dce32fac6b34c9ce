from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autotune.report.html import build_report, render
from autotune.report.show import show_json, trial_json
from autotune.report.verdict_words import tell
from autotune.report.view import load_view

VOID = {"meta", "br", "input", "line", "path", "rect", "circle"}
NEVER = ("significant", "proven", "optimal", "best possible", "guaranteed", "no difference",
         "statistically")  # fmt: skip
Make = Callable[..., Any]


class Page(HTMLParser):
    """A parsed page; insists on balanced elements, so that a broken page fails the test."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if "report-data" in str(self.elements[-1][1].get("id")):
                self.data += data
        elif not self.open or self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"not strict JSON: {constant}")

    return json.loads(text, parse_constant=refuse)


def zero(make: Make) -> Any:
    return make()


def one(make: Make) -> Any:
    study = make(requests=60)
    study.measured({"max-num-batched-tokens": 8192}, ttft=0.5, tpot=0.08, role="baseline")
    return study


def equal(make: Make) -> Any:
    study = one(make)
    first = study.path / "trials" / "0000"
    for number in range(1, 5):
        study.measured({"max-num-seqs": 64 * number}, ttft=0.5, tpot=0.08)
        folder = study.path / "trials" / f"{number:04d}"
        outcome = json.loads((folder / "outcome.json").read_text())
        outcome["values"] = json.loads((first / "outcome.json").read_text())["values"]
        (folder / "outcome.json").write_text(json.dumps(outcome))
        (folder / "measurement.json").write_text((first / "measurement.json").read_text())
    return study


def interrupted(make: Make) -> Any:
    study = make(requests=60).search(3)
    return study.verdict("better", pairs=0, confirmed=False, interrupted=True)


def running(make: Make) -> Any:
    study = make(requests=60).search(3)
    (study.path / "trials" / "0004.partial").mkdir()
    return study


def all_failed(make: Make) -> Any:
    study = make()
    study.failed({}, role="baseline", state="unmeasurable", fault="environment",
                 reason="docker_down", message="docker did not answer")  # fmt: skip
    study.failed({"gpu-memory-utilization": 0.97})
    return study


def better(make: Make) -> Any:
    return make(requests=120).search(12).verdict("better").scripts()


def simulated(make: Make) -> Any:
    return make(requests=60, simulated=True).search(6).verdict("better").scripts()


def equal_verdict(make: Make) -> Any:
    return make(requests=60).search(6, best_gain=0.97).verdict("not_distinguishable", gain=0.985)


def keep(make: Make) -> Any:
    return make(requests=60).search(6, best_gain=1.3).verdict("keep_baseline", gain=1.2)


def nothing_feasible(make: Make) -> Any:
    study = make(requests=60)
    study.measured({"max-num-seqs": 8}, ttft=0.5, tpot=0.08, failed=2, role="baseline")
    for number in range(1, 5):
        study.measured({"max-num-seqs": 64 * number}, ttft=0.4, tpot=0.09 + 0.01 * number)
    return study.verdict("no_feasible", pairs=0)


STATES = (zero, one, equal, interrupted, running, all_failed, better, simulated, equal_verdict,
          keep, nothing_feasible)  # fmt: skip


@pytest.fixture(scope="module")
def page_of(study: Make) -> Callable[[Make], str]:
    """The page of a state, built once for all tests that only read it."""
    pages: dict[str, str] = {}

    def page(state: Make) -> str:
        if state.__name__ not in pages:
            path = build_report(state(study).path)
            pages[state.__name__] = path.read_text(encoding="utf-8")
        return pages[state.__name__]

    return page


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_state_of_a_study_gives_a_whole_page(page_of: Make, state: Make) -> None:
    page = Page(page_of(state))
    assert page.count("h1") == 1
    assert {"header", "main", "nav", "footer"} <= {tag for tag, _ in page.elements}
    assert page.count("script") == 2
    strict(page.data)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"]) for tag, a in page.elements if tag == "a" and "href" in a]
    assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)
    assert "None" not in page.text
    assert "nan" not in page.text.lower().split()
    lowered = page.text.lower()
    assert [word for word in NEVER if word in lowered] == []


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_headings_never_skip_a_level_and_figures_are_spoken(page_of: Make, state: Make) -> None:
    page = Page(page_of(state))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    pictures = [a for tag, a in page.elements if tag == "svg" and a.get("class") == "plot"]
    assert all(picture.get("role") == "img" for picture in pictures)
    tables = page.count("table")
    assert tables == page.count("caption")


def test_the_page_asks_no_host_for_anything(page_of: Make) -> None:
    text = page_of(better)
    page = Page(text)
    policy = next(a["content"] for tag, a in page.elements if "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'")
    for tag, attrs in page.elements:
        assert "src" not in attrs, tag
        assert tag not in {"link", "img", "iframe", "object"}
        assert not str(attrs.get("href", "")).startswith(("http", "//"))
    assert "url(http" not in text
    assert "@import" not in text


@pytest.mark.parametrize(
    ("state", "headline"),
    [
        (better, "Change the launch settings: the first token comes in about a third of the time"),
        (equal_verdict, "No setting could be told apart from today's"),
        (keep, "Keep today's settings: nothing tried was better within the limits"),
        (nothing_feasible, "Nothing tried meets all limits, and today's settings do not either"),
        (zero, "No trial has finished yet"),
        (one, "Only today's settings were measured so far"),
        (interrupted, "Promising, not confirmed: the wait for the first token is 6"),
        (all_failed, "No verdict: the measurement cannot be trusted. Docker did not answer."),
        (simulated, "In the simulation: Change the launch settings: the wait for the first"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_headlines_say_the_verdict(page_of: Make, state: Make, headline: str) -> None:
    text = page_of(state)
    found = re.search("<h1>(.*?)</h1>", text, re.DOTALL)
    assert found is not None
    assert found.group(1).replace("&#39;", "'").startswith(headline)


@pytest.mark.parametrize(
    ("state", "labels"),
    [
        (simulated, ["SIMULATED"]),
        (interrupted, ["INTERRUPTED", "UNCONFIRMED"]),
        (running, ["NOT FINISHED", "UNCONFIRMED"]),
        (better, []),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_banners_say_what_a_number_is_not(page_of: Make, state: Make, labels: list[str]) -> None:
    text = page_of(state)
    assert re.findall(r'class="banner"><strong>([A-Z ]+)<', text) == labels


def test_a_suspect_launch_behind_the_result_is_said_first(study: Make) -> None:
    made = study(requests=60)
    made.measured({}, ttft=0.5, tpot=0.08, role="baseline", validity="suspect",
                  reasons=("the client was late by 40 ms",))  # fmt: skip
    text = render(load_view(made.path))
    assert "SUSPECT" in text
    assert "the client was late by 40 ms" in text


def test_a_better_verdict_shows_command_settings_limits_and_doubts(page_of: Make) -> None:
    page = Page(page_of(better))
    for words in ("bash best/launch.sh", "Way back: bash best/rollback.sh", "16384", "lossy",
                  "kv-cache-dtype", "Success rate shown to", "Answer quality was not checked",
                  "All 3 pairs agree in direction", "exec vllm serve"):  # fmt: skip
        assert words in page.text.replace("  ", " "), words


def test_keeping_the_baseline_never_announces_a_gain(page_of: Make) -> None:
    page = Page(page_of(keep))
    assert "Keep today's settings" in page.text
    assert "Change the launch settings" not in page.text
    assert "Run this" not in page.text


def test_noise_is_not_sold_as_a_gain(page_of: Make) -> None:
    page = Page(page_of(equal_verdict))
    assert "is within run-to-run variation" in page.text
    assert "not distinguishable" in page.text
    assert "Run this" not in page.text


def test_nothing_feasible_offers_no_script_and_names_the_nearest(page_of: Make) -> None:
    page = Page(page_of(nothing_feasible))
    assert "No recommendation was written" in page.text
    assert "Nearest: #0 (today's) misses success_rate >= 0.999 by" in page.text
    assert "stops most: without it" in page.text
    assert "bash best/launch.sh" not in page.text


def test_failures_are_grouped_by_cause_with_their_boundary_and_log_line(page_of: Make) -> None:
    page = Page(page_of(better))
    assert "gpu-memory-utilization: 0.9 ran, 0.97 failed" in page.text
    assert "Tried to allocate 1.90 GiB" in page.text


def test_hostile_text_stays_text(study: Make) -> None:
    made = study(name="<img src=x onerror=alert(1)>", requests=60)
    made.measured({"a": "<b>1</b>"}, ttft=0.5, tpot=0.08, role="baseline")
    evil = "</script><script>alert(2)</script>\x00\x1b[31m\u202e"
    made.failed(
        {"<i>k</i>": evil},
        evidence=("</script><script>alert(3)</script>", evil + "\ud800"),
        message="<svg onload=alert(4)>",
        reason="<u>x</u>",
    )
    path = build_report(made.path)
    page = Page(path.read_text(encoding="utf-8"))
    names = {tag for tag, _ in page.elements}
    assert not names & {"img", "i", "u"}
    assert page.count("script") == 2
    assert all("onerror" not in a and "onload" not in a for _, a in page.elements)
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "</script><script>alert(3)</script>" in page.text
    assert "<" not in page.data
    assert strict(page.data)["study"]["name"] == "<img src=x onerror=alert(1)>"
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", path.read_text(encoding="utf-8"))


def test_prompts_and_secrets_of_a_dying_engine_stay_out_of_the_page(study: Make) -> None:
    made = study(requests=60)
    made.failed(
        {},
        role="baseline",
        evidence=(
            "Received request cmpl-1: prompt: 'CASE-PRIVATE-PROMPT what is it?', params",
            "NewRequestData(req_id=1,prompt_token_ids=[9906,1917,1148],sampling_params=x)",
            "api_key='sk-CASE-PRIVATE-KEY-123456'",
        ),
    )
    view = load_view(made.path)
    everything = render(view) + json.dumps(show_json(view)) + json.dumps(trial_json(view, 0))
    for private in ("PRIVATE-PROMPT", "9906", "PRIVATE-KEY"):
        assert private not in everything
    assert "may hold prompts" in everything


def test_a_metric_that_is_not_a_number_shows_as_not_measured(study: Make) -> None:
    made = study(requests=60).search(4)
    path = made.path / "trials" / "0001" / "measurement.json"
    measurement = json.loads(path.read_text())
    measurement["metrics"]["tpot_p95_s"] = float("nan")
    measurement["metrics"]["e2e_p95_s"] = float("inf")
    measurement["metrics"]["ttft_p99_s"] = None
    path.write_text(json.dumps(measurement))
    page = Page(render(load_view(made.path)))
    strict(page.data)
    assert "not measured" in page.text


def test_a_report_names_only_the_engine_of_the_study(page_of: Make) -> None:
    page = Page(page_of(better))
    assert "vLLM 0.26.0" in page.text
    assert "sglang" not in page.text.lower()


def test_the_page_is_written_atomically_and_leaves_nothing_beside_it(study: Make) -> None:
    made = running(study)
    before = {path.name for path in made.path.iterdir()}
    build_report(made.path)
    build_report(made.path)
    assert {path.name for path in made.path.iterdir()} == before | {"report.html", "report.json"}


def test_the_page_is_small(page_of: Make) -> None:
    assert len(page_of(better).encode()) < 400_000


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_keep_their_contrast_in_both_themes() -> None:
    import autotune.report

    folder = Path(str(autotune.report.__file__)).parent / "templates"
    css = (folder / "report.css").read_text()
    blocks = [b for b in re.findall(r"\{([^{}]*--ink[^{}]*)\}", css) if "--baseline" in b]
    assert len(blocks) >= 3
    for block in blocks:
        colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
        for name in ("ink", "second", "link", "caution", "broken"):
            for surface in ("surface", "panel"):
                assert contrast(colours[name], colours[surface]) >= 4.5, (name, surface)
        for name in ("baseline", "best", "other", "breaks"):
            assert contrast(colours[name], colours["surface"]) >= 3, name


def test_study_that_measured_nothing_but_the_baseline_gives_no_advice(study: Make) -> None:
    view = load_view(one(study).verdict("keep_baseline", pairs=0).path)
    story = tell(view)
    assert "only today's settings were measured" in story.headline
    assert "better" not in story.headline
