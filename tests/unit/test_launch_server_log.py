"""The log of a server: whole lines, masked, private; reading its end and its growth."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.launch.server_log import LogFollower, MaskedLog, log_tail


def write(path: Path, *pieces: bytes, secrets: tuple[str, ...] = ()) -> str:
    log = MaskedLog(path, secrets)
    for piece in pieces:
        log.feed(piece)
    log.close()
    return path.read_text()


def test_a_secret_that_arrives_in_two_pieces_is_masked(tmp_path: Path) -> None:
    text = write(tmp_path / "l", b"key is abcd", b"efgh!\nnext", secrets=("abcdefgh",))
    assert text == "key is ***!\nnext\n"


def test_progress_bars_become_lines(tmp_path: Path) -> None:
    assert write(tmp_path / "l", b"10%\r", b"20%\r\n", b"done") == "10%\n20%\ndone\n"


def test_broken_utf8_and_a_split_character_do_no_harm(tmp_path: Path) -> None:
    assert write(tmp_path / "l", b"caf\xc3", b"\xa9 \xff\n") == "café �\n"


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    write(tmp_path / "l", b"x\n")
    assert stat.S_IMODE((tmp_path / "l").stat().st_mode) == 0o600


def test_the_log_of_an_earlier_attempt_is_kept_aside(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n", b"third\n"):
        write(tmp_path / "l", text)
    texts = [(tmp_path / name).read_text() for name in ("l.1", "l.2", "l")]
    assert texts == ["first\n", "second\n", "third\n"]


def test_an_endless_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    text = write(tmp_path / "l", *[b"x" * 600_000] * 4, b"\nnext\n")
    assert "(cut: longer than 1 MiB)" in text
    assert text.endswith("\nnext\n")
    assert len(text) < 1_200_000


def test_a_full_disk_loses_lines_but_never_raises() -> None:
    device = Path("/dev/full")
    if not device.exists():
        pytest.skip("no /dev/full")
    log = MaskedLog.__new__(MaskedLog)
    log.path, log.error, log._secrets = device, None, ()
    import threading

    log._lock = threading.Lock()
    log._file = device.open("wb", buffering=0)
    log._reset()
    log.feed(b"lost\n")
    log.close()
    assert log.error is not None


@given(st.binary(max_size=300), st.integers(1, 20))
def test_pieces_make_the_same_lines_as_the_whole(data: bytes, size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert write(Path(folder) / "a", *pieces) == write(Path(folder) / "b", data)


@given(st.lists(st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=20)),
       st.integers(0, 30))  # fmt: skip
def test_the_tail_is_the_last_lines(lines: list[str], count: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "l"
        path.write_text("".join(line + "\n" for line in lines))
        assert log_tail(path, count) == (lines[-count:] if count else [])


def test_a_follower_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "l"
    follower = LogFollower(path)
    assert follower.new_lines() == []
    path.write_text("one\ntw")
    assert follower.new_lines() == ["one"]
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert follower.new_lines() == ["two", "three"]
    assert follower.new_lines() == []


def test_no_log_has_no_lines() -> None:
    assert log_tail(None) == []
    assert LogFollower(None).new_lines() == []
