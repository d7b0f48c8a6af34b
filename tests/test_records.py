"""Dataclasses read strictly from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlbhpc.records import RecordError, from_plain, to_plain


@dataclass(frozen=True)
class Inner:
    size: int
    path: Path | None = None


@dataclass(frozen=True)
class Outer:
    rate: float
    inner: Inner
    items: tuple[str, ...]
    table: Mapping[str, str | int | float | bool | None]


PLAIN = {
    "rate": 0.5,
    "inner": {"size": 3, "path": "/x"},
    "items": ["a", "b"],
    "table": {"a": True, "b": 1, "c": 1.0, "d": None, "e": "text"},
}


def test_reading_and_writing_are_inverse() -> None:
    outer = from_plain(Outer, PLAIN, "here")
    assert outer.inner == Inner(3, Path("/x"))
    assert to_plain(outer) == PLAIN
    assert [type(value) for value in outer.table.values()] == [bool, int, float, type(None), str]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": None}, "here: rate is None, which is not a number"),
        ({"rate": True}, "here: rate is True, which is not a number"),
        ({"inner": {"size": "3"}}, "here: inner.size is '3', which is not a whole number"),
        ({"inner": {"size": True}}, "here: inner.size is True, which is not a whole number"),
        ({"inner": {}}, "here: missing key 'inner.size'"),
        ({"inner": {"size": 1, "sise": 2}}, "here: unknown key 'inner.sise'"),
        ({"inner": 3}, "here: inner is 3, which is not a mapping"),
        ({"items": "a"}, "here: items is 'a', which is not a list"),
        ({"table": {"a": []}}, r"here: table.a is \[\], which is not text or"),
    ],
)
def test_data_of_another_shape_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        from_plain(Outer, {**PLAIN, **change}, "here")


def test_a_whole_number_will_do_where_a_number_is_wanted() -> None:
    rate = from_plain(Outer, {**PLAIN, "rate": 1}, "here").rate
    assert rate == 1.0
    assert isinstance(rate, float)
