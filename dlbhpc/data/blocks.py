"""Cut encoded documents into blocks of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """Token blocks of one length; ``attention_mask`` is 1 on real tokens and 0 on padding."""

    input_ids: list[list[int]]
    attention_mask: list[list[int]]

    @property
    def tokens(self) -> int:
        """Real tokens in all blocks."""
        return sum(map(sum, self.attention_mask))


def to_blocks(documents: Iterable[Sequence[int]], length: int, *, end: int, padding: int) -> Blocks:
    """Join ``documents``, each followed by ``end``, and cut the stream every ``length`` tokens.

    Only the last block is padded: no token is dropped or repeated.
    """
    stream = [token for document in documents for token in (*document, end)]
    input_ids, attention_mask = [], []
    for start in range(0, len(stream), length):
        block = stream[start : start + length]
        missing = length - len(block)
        input_ids.append(block + [padding] * missing)
        attention_mask.append([1] * len(block) + [0] * missing)
    return Blocks(input_ids, attention_mask)
