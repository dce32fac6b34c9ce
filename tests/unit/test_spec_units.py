from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec.units import format_duration, parse_duration, parse_share, plain_number
from autotune.spec.versions import check_version_range, version_in_range, version_key


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0, 0.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("90s", 90.0),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("1.5h", 5400.0),
        ("2h30m", 9000.0),
        ("2h 30min", 9000.0),
        ("8h", 28800.0),
        ("1d", 86400.0),
        (" 10 s ", 10.0),
    ],
)
def test_durations_read_as_seconds(written: object, seconds: float) -> None:
    assert seconds == parse_duration(written)


@pytest.mark.parametrize(
    "written",
    ["", "h", "8 hours", "8x", "30m2h", "1h1h", "-5s", -5, True, None, [], float("nan"), "1e3s",
     float("inf"), "9" * 400, 10**400, "400d"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"duration|year"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.5, "500ms"), (0.0002, "200us"), (90, "1m30s"), (28800, "8h"), (5400, "1h30m"),
     (3600.25, "1h0.25s"), (59.9996, "1m")],
)  # fmt: skip
def test_durations_are_written_short(seconds: float, text: str) -> None:
    assert text == format_duration(seconds)


@given(st.floats(min_value=0, max_value=1e7))
def test_a_written_duration_reads_back_to_the_millisecond(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=0.000501)


@pytest.mark.parametrize(
    ("written", "share"), [(0.01, 0.01), (0, 0.0), (1, 1.0), ("1%", 0.01), ("99.9 %", 0.999)]
)  # fmt: skip
def test_shares_read_as_parts_of_one(written: object, share: float) -> None:
    assert share == parse_share(written)


@pytest.mark.parametrize("written", [1.5, "150%", "five", True, None, -0.1, float("nan")])
def test_what_is_no_share_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="share"):
        parse_share(written)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_plain_numbers_have_no_exponent_and_read_back(value: float) -> None:
    text = plain_number(value)
    assert "e" not in text.lower()
    assert value == float(text)


@pytest.mark.parametrize(
    ("version", "text", "inside"),
    [
        ("0.26.0", ">=0.12", True),
        ("0.9.2", ">=0.12", False),
        ("0.19.1", ">=0.12,<0.20", True),
        ("0.20", ">=0.12, <0.20.0", False),
        ("v0.26.0rc1+cpu", ">=0.26", True),
        ("0.26.0", "==0.26", True),
        ("0.26.1", "!=0.26", True),
        ("main", ">=0.12", None),
    ],
)
def test_versions_compare_by_number(version: str, text: str, inside: bool | None) -> None:
    assert inside is version_in_range(version, text)


def test_a_version_has_its_numbers_only() -> None:
    assert version_key("v0.26.0+cpu") == (0, 26)
    assert version_key("nightly") is None


@pytest.mark.parametrize("text", ["0.12", "", ">=0.12,", "~=0.12", ">= x"])
def test_what_is_no_version_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="version range"):
        check_version_range(text)
