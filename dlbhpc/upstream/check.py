"""Do our overrides fit an upstream's configuration? Proved against its surface alone.

The rules are Hydra's: a plain override names a key or a group option that exists, ``+`` one that
does not. ``++``, which fits always and so proves nothing, is never rendered.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dlbhpc.upstream.surface import Surface


@dataclass(frozen=True)
class Problem:
    """An override that does not fit: its key as rendered, and what was expected."""

    key: str
    expected: str


def check_overrides(words: Sequence[str], surface: Surface) -> list[Problem]:
    """What does not fit among ``words``, the overrides of one command, in their order."""
    pairs = [(word.partition("=")[0], word.partition("=")[2]) for word in words]
    chosen = {
        key: _unquoted(option)
        for key, option in pairs
        if _unquoted(option) in surface.groups.get(key, {})
    }
    keys = surface.keys(chosen)
    nodes = frozenset(keys) | {parent for key in keys for parent in _parents(key)}
    problems = []
    for key, value in pairs:
        expected = _expected(key, _unquoted(value), surface, keys, nodes)
        if expected is not None:
            problems.append(Problem(key, expected))
    problems += [Problem(key, "one override of a key") for key in _twice(key for key, _ in pairs)]
    return problems


def _expected(
    key: str, value: str, surface: Surface, keys: frozenset[str], nodes: frozenset[str]
) -> str | None:
    """What should stand there instead; None where ``key=value`` fits."""
    name = key.lstrip("+")
    prefix = key[: len(key) - len(name)]
    if prefix == "++":
        return "+ for a new key or no prefix for an existing one, never ++"
    if name in surface.groups:
        options = surface.groups[name]
        if value not in options:
            return f"an option of the group {name}, {_one_of(value, options)}"
        if prefix:
            return f"no +, since {surface.upstream} chooses from the group {name} itself"
        if name not in surface.default_groups():
            return f"+, since {surface.upstream} chooses nothing from the group {name}"
        return None
    if not prefix:
        return None if name in nodes else f"an existing key, {_one_of(name, nodes)}"
    if name in nodes:
        return "no +, since the key exists"
    # Hydra makes the mappings on the way, but puts none in a value's place.
    parents = list(_parents(name))
    if leaf := next((parent for parent in parents if parent in keys), None):
        return f"a key under a mapping: {leaf} is a value"
    if parents and parents[0] not in nodes:
        return f"a key under a mapping that exists, {_one_of(parents[0], nodes)}"
    return None


def _parents(key: str) -> Iterator[str]:
    """The mappings above a key, the topmost first."""
    parts = key.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count])


def _twice(keys: Iterable[str]) -> list[str]:
    counts = Counter(key.lstrip("+") for key in keys)
    return [key for key, count in counts.items() if count > 1]


def _unquoted(value: str) -> str:
    return value[1:-1] if value.startswith("'") and value.endswith("'") else value


def _one_of(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=3)
    return f"as {' or '.join(near)}" if near else "and there is none like it"
