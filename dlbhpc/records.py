"""Frozen dataclasses to and from plain data (what YAML and JSON hold), strictly.

The shape of the data is the dataclass itself: a missing or extra key, or a value of another type,
is an error that names the place and the key.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from dlbhpc.errors import DlbhpcError

T = TypeVar("T")
_type_hints = functools.cache(get_type_hints)


class RecordError(DlbhpcError):
    """Data that does not have the shape of its record."""


def to_plain(value: Any) -> Any:
    """``value`` with dataclasses and mappings as dicts, tuples as lists and paths as strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[T], data: object, where: str) -> T:
    """The ``kind`` (a dataclass) that ``data`` describes; ``where`` names the data in errors.

    Raises :class:`RecordError`.
    """
    result: T = _read(kind, data, where, "")
    return result


def _read(kind: Any, data: Any, where: str, key: str) -> Any:
    if kind is Any:
        return data
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), data, where, key)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, where, key)
    if origin is tuple and isinstance(data, (list, tuple)):
        item_kind = get_args(kind)[0]
        return tuple(_read(item_kind, item, where, f"{key}[{i}]") for i, item in enumerate(data))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, Mapping):
        item_kind = get_args(kind)[1]
        return {
            str(name): _read(item_kind, item, where, f"{key}.{name}") for name, item in data.items()
        }
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    # A bool is an int to Python, not to a reader of a recipe.
    as_bool = isinstance(data, bool) and kind is not bool
    if isinstance(kind, type) and origin is None and isinstance(data, kind) and not as_bool:
        return data
    raise RecordError(f"{where}: {key or 'it'} is {data!r}, which is not {_describe(kind)}")


def _read_union(kinds: tuple[Any, ...], data: Any, where: str, key: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return _read(kinds[0], data, where, key)
    for kind in kinds:
        try:
            return _read(kind, data, where, key)
        except RecordError:
            continue
    raise RecordError(
        f"{where}: {key} is {data!r}, which is not {' or '.join(map(_describe, kinds))}"
    )


def _read_dataclass(kind: Any, data: Any, where: str, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise RecordError(f"{where}: {key or 'it'} is {data!r}, which is not a mapping")
    hints = _type_hints(kind)
    prefix = f"{key}." if key else ""
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [prefix + name for name in required if name not in data]:
        raise RecordError(f"{where}: missing {_keys(missing)}")
    if extra := [prefix + str(name) for name in data if name not in hints]:
        raise RecordError(f"{where}: unknown {_keys(extra)}")
    return kind(
        **{name: _read(hints[name], item, where, prefix + name) for name, item in data.items()}
    )


def _keys(names: list[str]) -> str:
    return f"key{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def _describe(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    origin = get_origin(kind)
    if origin is tuple:
        return "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    return names.get(kind, getattr(kind, "__name__", str(kind)))
