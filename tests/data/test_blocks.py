"""Cutting documents into blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.data.blocks import to_blocks

PADDING, END = 0, 1


@given(st.lists(st.lists(st.integers(2, 9), max_size=20), min_size=1), st.integers(1, 7))
def test_no_token_is_dropped_repeated_or_reordered(documents: list[list[int]], length: int) -> None:
    blocks = to_blocks(documents, length, end=END, padding=PADDING)
    stream = [token for document in documents for token in [*document, END]]
    kept = [
        token
        for ids, mask in zip(blocks.input_ids, blocks.attention_mask, strict=True)
        for token, real in zip(ids, mask, strict=True)
        if real
    ]
    assert kept == stream
    assert blocks.tokens == len(stream)
    assert {len(row) for row in (*blocks.input_ids, *blocks.attention_mask)} == {length}
    assert all(all(mask) for mask in blocks.attention_mask[:-1])


def test_last_block_is_padded() -> None:
    blocks = to_blocks([[5, 6], [7]], 4, end=END, padding=PADDING)
    assert blocks.input_ids == [[5, 6, END, 7], [END, 0, 0, 0]]
    assert blocks.attention_mask == [[1, 1, 1, 1], [1, 0, 0, 0]]
