"""From documents to blocks: the rules that the upstreams share."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.data import encode
from dlbhpc.data.detokenize import DETOKENIZERS
from dlbhpc.data.raw import read_pins

BOUNDARY = 0


@given(st.lists(st.lists(st.integers(1, 9), max_size=30), min_size=1), st.integers(3, 9))
def test_blocks_are_the_joined_documents_cut_enclosed_and_without_the_rest(
    documents: list[list[int]], length: int
) -> None:
    blocks = encode.wrap(documents, length, BOUNDARY)
    stream = [token for document in documents for token in [*document, BOUNDARY]]
    assert str(blocks.dtype) == "int32"
    assert blocks.shape == (len(stream) // (length - 2), length)
    assert all(block[0] == block[-1] == BOUNDARY for block in blocks.tolist())
    inner = [token for block in blocks.tolist() for token in block[1:-1]]
    assert inner == stream[: len(inner)]
    assert len(stream) - len(inner) < length - 2


def test_what_is_left_of_each_thousand_documents_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encode, "encode", lambda _, texts: [[int(text)] for text in texts])
    texts = [str(1 + i % 9) for i in range(2001)]
    groups = list(encode.blocks_of(texts, None, 5, BOUNDARY))  # type: ignore[arg-type]
    assert [len(group) for group in groups] == [2000 // 3, 2000 // 3, 0]


@pytest.mark.parametrize(
    ("corpus", "text"),
    [
        ("See http : / / a.org / b / c .", "See http://a.org/b/c."),
        ("https : / / a.org", "https://a.org"),
        # Their rule for full stops does not see a word with an apostrophe.
        ("He didn 't . She 's here .", "He didn't . She's here."),
        ("Why ? No ! Yes , a : b ; c / d", "Why? No! Yes, a: b; c/d"),
        ("Why ?", "Why?"),
        ("No !", "No!"),
        ('He said " go on " .', 'He said "go on" .'),
        ("the ' odd ' one", "the 'odd' one"),
        ("a ( b ) [ c ] $ 5 £ 6", "a (b) [c] $5 £6"),
        ("", ""),
    ],
)
def test_lm1b_loses_the_blanks_around_its_punctuation(corpus: str, text: str) -> None:
    assert DETOKENIZERS["lm1b"](corpus) == text


@given(st.text())
def test_a_corpus_without_rules_is_left_alone(text: str) -> None:
    assert DETOKENIZERS[None](text) == text


def test_the_pins_are_whole() -> None:
    lm1b, owt = read_pins("lm1b"), read_pins("owt")
    for pins in (lm1b, owt):
        assert pins.detokenizer in DETOKENIZERS
        assert re.fullmatch("[0-9a-f]{40}", pins.revision)
        assert pins.documents_per_file % encode.DOCUMENTS_PER_GROUP == 0
    assert lm1b.splits["train"].stop == 30_301_028
    assert lm1b.splits["validation"].stop == 306_688
    assert {split.files for split in owt.splits.values()} == {"train"}
    held_out = owt.splits["validation"]
    assert held_out.start == owt.splits["train"].stop
    assert (held_out.stop, held_out.stop - held_out.start) == (8_013_769, 100_000)
