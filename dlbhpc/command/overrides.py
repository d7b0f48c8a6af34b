"""From a table of overrides with placeholders to the words of a Hydra command line."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe import Value

# What Hydra's grammar reads as this very text without quotes; everything else is quoted.
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_LITERALS = {"true", "false", "null", "nan", "inf"}
_BEFORE_QUOTE = re.compile(r"(\\*)('|$)")

_RESUME = "checkpointing.resume_from_ckpt"


def fill(key: str, value: Value, values: Mapping[str, Value]) -> Value:
    """``value`` with its placeholders filled in from ``values``.

    A value that is one placeholder takes its value with its type; placeholders inside a longer text
    are inserted as text. Raises :class:`DlbhpcError` for an unknown placeholder; ``key`` names the
    place.
    """
    if not isinstance(value, str):
        return value
    parts = list(string.Formatter().parse(value))
    for _, name, form, conversion in parts:
        if name is not None and (name not in values or form or conversion):
            raise DlbhpcError(f"{key}={value}: there is no {{{name}}} to fill in here")
    if len(parts) == 1 and parts[0][0] == "" and parts[0][1] is not None:
        return values[parts[0][1]]
    return "".join(
        literal + ("" if name is None else _text(values[name])) for literal, name, _, _ in parts
    )


def override(key: str, value: Value) -> str:
    """``key=value`` in Hydra's override grammar, which reads back this very value."""
    if isinstance(value, str) and not _is_bare(value):
        return f"{key}={_quoted(key, value)}"
    return f"{key}={_text(value)}"


def override_key(word: str) -> str:
    """The key of an override, without the prefix that adds it."""
    return word.lstrip("+").partition("=")[0]


def attempt_argv(argv: Sequence[str], resume: bool) -> list[str]:
    """The recorded command as an attempt runs it: told to resume only from a step that is there.

    One upstream takes the flag alone, without a look at the file, for a resumed run.
    """
    told = override(_RESUME, resume)
    return [told if override_key(word) == _RESUME else word for word in argv]


def compose_argv(argv: Sequence[str]) -> list[str]:
    """The command that prints the upstream's composed configuration instead of training."""
    return [*argv, "--cfg", "job", "--resolve"]


def _is_bare(text: str) -> bool:
    return bool(_BARE.fullmatch(text)) and text.lower() not in _LITERALS


def _quoted(key: str, text: str) -> str:
    if "${" in text:
        raise DlbhpcError(f"{key}: {text!r} contains '${{', which Hydra reads as an interpolation")
    # Inside quotes a backslash is itself, unless quotes follow: those before a quote are doubled.
    return "'" + _BEFORE_QUOTE.sub(lambda m: m[1] * 2 + (m[2] and "\\'"), text) + "'"


def _text(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
