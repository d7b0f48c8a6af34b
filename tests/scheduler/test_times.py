"""Time limits in every form that Slurm takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.times import format_time, parse_time, round_up_to_minutes

NUMBER = st.integers(0, 999)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("90:00", 5400),
        ("1:30", 90),
        ("12:00:00", 43200),
        ("1-00", 86400),
        ("1-12:30", 131400),
        ("2-03:04:05", 183845),
        ("0:30", 30),
        ("UNLIMITED", None),
        ("infinite", None),
        ("0", None),
        ("0-00:00", None),
    ],
)
def test_each_form(text: str, seconds: int | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "1h",
            "1.5",
            "-1",
            "+5",
            "1-",
            "-5",
            "1:2:3:4",
            "1-2-3",
            "1:2-3",
            "a",
            "5\n",
            "٣",
        ),
        *("1 2", ":", "1:", ":1", "1-:2", "NOLIMIT", "99999999999", "25000-0"),
    ],
)
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(DlbhpcError, match=r"D-HH:MM:SS or UNLIMITED|longer than Slurm can count"):
        parse_time(text)


@given(NUMBER, NUMBER, NUMBER, NUMBER)
def test_every_part_counts_in_its_place(d: int, h: int, m: int, s: int) -> None:
    """The forms as the manual lists them, against its own arithmetic."""
    day, hour, minute = 86400 * d, 3600 * h, 60 * m
    assert (parse_time(f"{m}") or 0) == minute
    assert (parse_time(f"{m}:{s}") or 0) == minute + s
    assert (parse_time(f"{h}:{m}:{s}") or 0) == hour + minute + s
    assert (parse_time(f"{d}-{h}") or 0) == day + hour
    assert (parse_time(f"{d}-{h}:{m}") or 0) == day + hour + minute
    assert (parse_time(f"{d}-{h}:{m}:{s}") or 0) == day + hour + minute + s


@given(st.none() | st.integers(1, 2**31 - 1))
def test_what_is_formatted_is_parsed_back(seconds: int | None) -> None:
    assert parse_time(format_time(seconds)) == seconds


@given(st.integers(1, 2**31))
def test_slurm_counts_in_whole_minutes_and_never_fewer(seconds: int) -> None:
    rounded = round_up_to_minutes(seconds)
    assert rounded % 60 == 0
    assert 0 <= rounded - seconds < 60
