"""Undo the blanks that a published corpus has between words and punctuation.

The rules of lm1b are those of all six Lightning upstreams, which have them from one ancestor; the
order of the rules is part of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

_LM1B: tuple[tuple[str | re.Pattern[str], str], ...] = (
    ("http : / / ", "http://"),
    ("https : / / ", "https://"),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    (" ? ", "? "),
    (re.compile(r" \?$"), "?"),
    (" ! ", "! "),
    (re.compile(r" \!$"), "!"),
    (" , ", ", "),
    (" : ", ": "),
    (" ; ", "; "),
    (" / ", "/"),
    (re.compile(r"\" ([^\"]+) \""), r'"\1"'),
    (re.compile(r"' ([^']+) '"), r"'\1'"),
    (re.compile(r"\( ([^()]+) \)"), r"(\1)"),
    (re.compile(r"\[ ([^\[\]]+) \]"), r"[\1]"),
    ("$ ", "$"),
    ("£ ", "£"),
)


def _apply(rules: tuple[tuple[str | re.Pattern[str], str], ...], text: str) -> str:
    for found, put in rules:
        text = text.replace(found, put) if isinstance(found, str) else found.sub(put, text)
    return text


def _unchanged(text: str) -> str:
    return text


DETOKENIZERS: dict[str | None, Callable[[str], str]] = {
    None: _unchanged,
    "lm1b": partial(_apply, _LM1B),
}
"""By the name that ``conf/raw`` gives them."""
