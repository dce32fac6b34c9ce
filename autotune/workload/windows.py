"""Which part of a recording is replayed: a window that represents the whole, a second one that is
held out for confirmation, and the prefixes that the window would have found in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.errors import InputError
from autotune.workload.arrivals import bucket_note, scaled, spread_arrivals, thinned
from autotune.workload.priming import Priming, prime
from autotune.workload.reader import ordered
from autotune.workload.representative import MIN_REQUESTS, Window, best_pair, ranked
from autotune.workload.statistics import hit_tokens, prefix_reuse
from autotune.workload.trace import Request, Skipped, Trace

SHORT = 20
"""A recording with fewer requests is replayed whole: neither of its halves would say much."""
ENOUGH_REQUESTS = 500
LEAST_WINDOW_S, MOST_WINDOW_S = 120.0, 600.0
"""A window that nobody stated is as long as this many requests take, within these bounds (as
replayed), and at most half of the recording, so that another half can be held out."""

TOO_SHORT = "the recording is too short for a second window; nothing is held out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is replayed in a study.

    `search` and `held_out` start at 0 s with their first request; `held_out` is None when the
    recording is too short for two. `over_limit`: requests left out for all candidates. `priming`
    (`held_out_priming`): requests of one output token whose prompts are the longest leading blocks
    that occurred before the window and are used in it, oldest last use first. `window_s` is the
    window's (start, end) in recorded time, None for the whole recording. `notes` are what a user
    should know, `portrait` how well the windows represent the recording.
    """

    search: Trace
    held_out: Trace | None
    over_limit: tuple[Skipped, ...]
    priming: tuple[Request, ...]
    notes: tuple[str, ...]
    held_out_priming: tuple[Request, ...] = ()
    window_s: tuple[float, float] | None = None
    portrait: tuple[str, ...] = ()


def select(
    trace: Trace,
    *,
    window_s: float | None = None,
    time_scale: float = 1.0,
    thin: float = 1.0,
    spread: bool = False,
    seed: int = 0,
    max_total_tokens: int | None = None,
    max_priming_tokens: int | None = None,
    cache_tokens: int | None = None,
    hold_out: bool = True,
) -> Selection:
    """Choose what to replay; `Selection` says what was done and how well it represents the
    recording.

    In this order: requests with more prompt and output tokens together than `max_total_tokens` are
    left out; `thin` keeps this share of the independent requests and whole sessions; `spread` draws
    bucketed arrivals within their bucket (both by `seed`); the window is cut; `time_scale` divides
    arrival times, so 2 plays twice as fast.

    `window_s` counts recorded seconds. None with `hold_out`: of a recording of at least `SHORT`
    requests a window is chosen that leaves another one to hold out; None without: everything.
    `max_priming_tokens` bounds the priming of each window, most recently used prefixes first. None:
    a share of the window's own prompt tokens, and no more than `cache_tokens`, what the engine's
    prefix cache can likely hold; 0: no priming.

    The window is the one whose rate, length quantiles and prefix reuse (with the history before it)
    differ least from the whole recording's; the held-out window is the best one that does not
    overlap it. Sessions are cut at its edges, their first turn inside starting afresh.

    Raises InputError when every request is over the limit; ValueError for a scale or share that
    makes no sense.
    """
    if time_scale <= 0:
        raise ValueError("time_scale must be above 0")
    whole, over_limit, notes = _shaped(trace, max_total_tokens, thin, seed, spread=spread)
    if window_s is None and hold_out:
        window_s, why = automatic_window_s(whole, time_scale)
        notes += filter(None, [why])
    if window_s is None or window_s >= whole.duration_s:
        if hold_out:
            notes.append("the whole recording is replayed; no part of it is held out")
        return Selection(
            search=scaled(whole, time_scale),
            held_out=None,
            over_limit=over_limit,
            priming=(),
            notes=tuple(notes),
        )
    windows, said = _windows(whole, window_s, (max_priming_tokens, cache_tokens), hold_out=hold_out)
    search, *others = [scaled(_cut(whole, window), time_scale) for window, _ in windows]
    first, priming = windows[0]
    return Selection(
        search=search,
        held_out=others[0] if others else None,
        over_limit=over_limit,
        priming=priming.requests,
        notes=(*notes, *([TOO_SHORT] if hold_out and not others else [])),
        held_out_priming=windows[1][1].requests if len(windows) > 1 else (),
        window_s=(first.start_s, first.end_s),
        portrait=tuple(said),
    )


def _windows(
    whole: Trace, length_s: float, bounds: tuple[int | None, int | None], *, hold_out: bool
) -> tuple[list[tuple[Window, Priming]], list[str]]:
    """(the window and, where wanted and possible, the held-out one, each with its priming within
    the bounds; what to say of them).
    """
    windows = ranked(whole, length_s)
    notes: list[str] = []
    chosen = {"window": windows[0]}
    if hold_out:
        chosen["window"], second = best_pair(windows, length_s)
        if second is not None:
            chosen["held-out window"] = second
    max_tokens, cache_tokens = bounds
    if any(request.messages for request in whole.requests):
        max_tokens = 0  # text is sent as it is; blocks would put other tokens in the cache
    found = []
    for name, window in chosen.items():
        priming = prime(whole, window.low, window.high, max_tokens, cache_tokens)
        found.append((window, priming))
        notes += _said(whole, window, priming, name)
    return found, notes


def automatic_window_s(trace: Trace, time_scale: float = 1.0) -> tuple[float | None, str | None]:
    """(length of the window in recorded seconds where none was stated, what to say of it).

    None for a recording that is short, or of which no half holds enough requests.
    """
    requests, duration_s = trace.requests, trace.duration_s
    if len(requests) < SHORT or duration_s <= 0:
        return None, None
    enough_s = ENOUGH_REQUESTS * duration_s / len(requests)
    least_s, most_s = LEAST_WINDOW_S * time_scale, MOST_WINDOW_S * time_scale
    length_s = min(duration_s / 2, max(least_s, min(enough_s, most_s)))
    halves = [sum(r.at_s < duration_s / 2 for r in requests)]
    halves.append(len(requests) - halves[0])
    if min(halves) < MIN_REQUESTS:
        return None, None
    why = (
        "half of the recording, the other half is held out"
        if length_s == duration_s / 2
        else f"{length_s:.0f} s of {duration_s:.0f} s, another such stretch is held out"
    )
    return length_s, f"no window was given: each trial replays {why}"


def _shaped(
    trace: Trace, limit: int | None, thin: float, seed: int, *, spread: bool
) -> tuple[Trace, tuple[Skipped, ...], list[str]]:
    """(the recording that windows are cut from, what was over the limit, what to say)."""
    kept, over = _within(trace.requests, limit)
    if not kept:
        raise InputError(
            message=f"no request of the workload fits {limit} tokens",
            seen=f"the shortest needs {min(r.input_tokens + r.output_tokens for r in over)}",
            hint="raise max-model-len, or choose another workload",
        )
    whole = replace(trace, requests=ordered(kept))
    notes: list[str] = []
    if over:
        notes.append(
            f"{len(over)} of {len(trace.requests)} requests are longer than {limit} "
            "tokens and left out for every candidate"
        )
    if thin != 1.0:
        thinner = thinned(whole, thin, seed=seed)
        notes.append(_thinning(whole, thinner, thin, seed))
        whole = thinner
    if spread:
        whole, note = spread_arrivals(whole, seed=seed)
        notes.append(note)
    elif (hint := bucket_note(whole)) is not None:
        notes.append(hint)
    return whole, tuple(Skipped(line=r.line, reason="over_limit") for r in over), notes


def _thinning(whole: Trace, thinner: Trace, share: float, seed: int) -> str:
    before, after = prefix_reuse(whole), prefix_reuse(thinner)
    reuse = "" if before is None or after is None else f"; prefix reuse {before:.0%} -> {after:.0%}"
    return (
        f"thinned to {share:g} (whole sessions, seed {seed}): {len(thinner.requests)} of "
        f"{len(whole.requests)} requests{reuse}"
    )


def _said(trace: Trace, window: Window, primed: Priming, name: str) -> list[str]:
    """How well a window represents the whole, and what its priming brings back."""
    said = [window.described(name)]
    outside = (*trace.requests[: window.low], *trace.requests[window.high :])
    inner = {r.session for r in trace.requests[window.low : window.high]}
    cut = len((inner & {r.session for r in outside}) - {None})
    if cut:
        said.append(
            f"{cut} sessions go on beyond the {name}: they are cut at its edges, and their first "
            "turn inside starts afresh"
        )
    priming = primed.described(name)
    if priming is not None:
        inside = trace.requests[window.low : window.high]
        hits = hit_tokens([*primed.requests, *inside], trace.block_size)[len(primed.requests) :]
        reuse = sum(hits) / sum(request.input_tokens for request in inside)
        said.append(f"{priming}; prefix reuse is then {reuse:.0%}")
    return said


def _within(
    requests: tuple[Request, ...], limit: int | None
) -> tuple[list[Request], list[Request]]:
    """(requests that fit, requests that do not)."""
    if limit is None:
        return list(requests), []
    over = [r for r in requests if r.input_tokens + r.output_tokens > limit]
    return [r for r in requests if r.input_tokens + r.output_tokens <= limit], over


def _cut(trace: Trace, window: Window) -> Trace:
    return replace(trace, requests=ordered(trace.requests[window.low : window.high]))
