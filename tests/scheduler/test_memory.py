"""Amounts of memory, and what is each one's share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.memory import Memory, parse_memory

MEMORY = st.builds(Memory, st.integers(0, 10**6), st.sampled_from("KMGT"))


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("64G", 65536), ("64g", 65536), ("500", 500), ("500M", 500), ("1T", 1048576), ("0", 0)],
)
def test_units_are_powers_of_1024_and_megabytes_are_the_default(text: str, megabytes: int) -> None:
    assert parse_memory(text).kilobytes == 1024 * megabytes


@pytest.mark.parametrize("text", ["", "G", "64 G", "64GB", "1.5G", "-1", "64P", "64G\n", "٣G"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(DlbhpcError, match="no amount of memory"):
        parse_memory(text)


@given(MEMORY)
def test_what_is_written_is_read_back(memory: Memory) -> None:
    assert parse_memory(str(memory)).kilobytes == memory.kilobytes


@given(MEMORY, st.integers(1, 512))
def test_the_shares_together_are_enough_and_none_is_larger_than_need_be(
    memory: Memory, parts: int
) -> None:
    share = memory.share(parts)
    assert share.unit == memory.unit
    assert share.amount * parts >= memory.amount
    assert (share.amount - 1) * parts < memory.amount
