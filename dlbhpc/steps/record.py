"""The record of a step directory, COMPLETE.json, and what makes a step directory valid."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlbhpc.steps import files
from dlbhpc.steps.errors import InvalidStep, OtherContract, StepError, StorageError, storage_error
from dlbhpc.steps.names import COMPLETE, EXPORT, LAST_STEP, STATE, step_of

SCHEMA_VERSION = 1

_LARGEST = 2**63 - 1
_LONGEST_NUMBER = len("-18446744073709551616")  # signs and digits of 64 bits
_LONGEST_DOCUMENT = 1 << 20  # bytes
_DEEPEST = 32  # levels, far from where Python stops to recurse
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StepRecord:
    """What COMPLETE.json says of one step.

    ``contract`` is the run's (plan, schema and manifest digests, world, objective, seed), ``world``
    the number of ranks that saved, sizes are in bytes, digests are lower-case hexadecimal SHA-256.
    ``attempt`` and ``time`` (ISO 8601, UTC) are missing from records that other tools wrote.
    """

    step: int
    contract: Mapping[str, Any]
    world: int
    state_bytes: int
    state_sha256: str
    export_bytes: int | None = None
    export_sha256: str | None = None
    attempt: int | None = None
    time: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that COMPLETE.json holds; what is None is left out."""
        document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **vars(self)}
        if not self.extra:
            del document["extra"]
        return {key: value for key, value in document.items() if value is not None}

    def to_bytes(self) -> bytes:
        """COMPLETE.json as written.

        Raises StepError when reading it would not give this record back, which happens for what
        JSON cannot say (NaN, tuples, keys that are not strings) and for numbers beyond 64 bits.
        """
        where = f"the record of step {self.step}"
        try:
            data = encode(self.to_json())
            same = parse_record(data, where) == self
        except (TypeError, ValueError, RecursionError) as error:
            raise StepError(f"{where} cannot be written as JSON: {error}") from error
        if not same:
            raise StepError(f"{where} would read back differently: use plain JSON values in it")
        return data


def encode(document: Mapping[str, Any]) -> bytes:
    """The bytes of a small JSON document. StepError when :func:`decode` would find it too long."""
    data = (json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")
    if len(data) > _LONGEST_DOCUMENT:
        raise StepError(f"a document of {len(data)} bytes: at most {_LONGEST_DOCUMENT} can be read")
    return data


def decode(data: bytes, where: str) -> dict[str, Any]:
    """The object in a small JSON document; anything else is an InvalidStep that names ``where``."""
    if len(data) > _LONGEST_DOCUMENT:
        raise InvalidStep(f"{where}: larger than {_LONGEST_DOCUMENT} bytes, not a record")
    try:
        document = json.loads(data.decode("utf-8"), parse_int=_integer, parse_constant=_constant)
        _check_depth(document)
    except (ValueError, RecursionError) as error:
        raise InvalidStep(f"{where}: not a JSON document: {_shown(str(error))}") from error
    if not isinstance(document, dict):
        raise InvalidStep(f"{where}: expected a JSON object, found {_shown(document)}")
    return document


def read_document(path: Path) -> dict[str, Any]:
    """Read a small JSON file. InvalidStep when it is missing or garbage, StorageError else."""
    try:
        return decode(files.read_regular(path, _LONGEST_DOCUMENT), str(path))
    except OSError as error:
        raise _absent_or_unreadable(path, error) from error


def parse_record(data: bytes, where: str) -> StepRecord:
    """The record in ``data``. Keys that are not known are ignored.

    Raises InvalidStep naming ``where``, the key, what was expected and what was found.
    """
    return _record(decode(data, where), where)


def read_record(folder: Path) -> StepRecord:
    """The record of a step directory whose name agrees with it.

    Raises InvalidStep for what is torn or foreign, StorageError for what cannot be read now.
    """
    try:
        if not files.is_folder(folder):
            raise InvalidStep(f"{folder}: not a folder (links are not followed)")
    except OSError as error:
        raise storage_error(f"reading {folder}", error) from error
    path = folder / COMPLETE
    record = _record(read_document(path), str(path))
    if step_of(folder.name) != record.step:
        raise InvalidStep(
            f"{path}: step differs: expected the {folder.name} of its folder, found {record.step}"
        )
    return record


def verify(folder: Path, record: StepRecord, *, content: bool = False) -> None:
    """Check a step directory's files against its record: sizes, and with ``content`` digests.

    Raises InvalidStep naming the file, what was expected and what was found; StorageError when a
    file cannot be read.
    """
    _verify_file(folder / STATE, record.state_bytes, record.state_sha256, content)
    if record.export_bytes is not None and record.export_sha256 is not None:
        _verify_file(folder / EXPORT, record.export_bytes, record.export_sha256, content)


def match(
    folder: Path, record: StepRecord, contract: Mapping[str, Any] | None, world: int | None
) -> None:
    """Raise OtherContract unless the record has the contract and world; None asks for nothing."""
    path = folder / COMPLETE
    if world is not None and record.world != world:
        raise OtherContract(f"{path}: world differs: expected {world}, found {record.world}")
    if contract is None:
        return
    for key in sorted({*contract, *record.contract}):
        expected, found = _entry(contract, key), _entry(record.contract, key)
        if expected != found:
            raise OtherContract(
                f"{path}: contract differs in {_shown(key)}: expected {expected}, found {found}"
            )


def _entry(contract: Mapping[str, Any], key: str) -> str:
    # As text: in Python True equals 1 equals 1.0, in a contract they differ.
    return json.dumps(contract[key], sort_keys=True) if key in contract else "nothing"


def _record(document: Mapping[str, Any], where: str) -> StepRecord:
    version = document.get("schema_version", SCHEMA_VERSION)
    if type(version) is int and version > SCHEMA_VERSION:
        raise StepError(f"{where}: schema_version {version} is newer than this program: update it")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InvalidStep(
            f"{where}: schema_version: expected {SCHEMA_VERSION}, found {_shown(version)}"
        )
    has_export = any(document.get(key) is not None for key in ("export_bytes", "export_sha256"))
    time = document.get("time")
    return StepRecord(
        step=_count(document, "step", where, LAST_STEP),
        contract=_object(document, "contract", where),
        world=_count(document, "world", where),
        state_bytes=_count(document, "state_bytes", where),
        state_sha256=_digest(document, "state_sha256", where),
        export_bytes=_count(document, "export_bytes", where) if has_export else None,
        export_sha256=_digest(document, "export_sha256", where) if has_export else None,
        attempt=_count(document, "attempt", where) if document.get("attempt") is not None else None,
        time=time if isinstance(time, str) else None,  # nothing depends on it
        extra=_object(document, "extra", where) if "extra" in document else {},
    )


def _count(document: Mapping[str, Any], key: str, where: str, largest: int = _LARGEST) -> int:
    value = document.get(key)
    # type(), since True is an instance of int.
    if type(value) is int and 1 <= value <= largest:
        return value
    raise _wrong(document, key, where, f"a whole number from 1 to {largest}")


def _digest(document: Mapping[str, Any], key: str, where: str) -> str:
    value = document.get(key)
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return value
    raise _wrong(document, key, where, "64 hexadecimal digits")


def _object(document: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = document.get(key)
    if isinstance(value, dict):
        return value
    raise _wrong(document, key, where, "an object")


def _wrong(document: Mapping[str, Any], key: str, where: str, expected: str) -> InvalidStep:
    found = _shown(document[key]) if key in document else "nothing"
    return InvalidStep(f"{where}: {key}: expected {expected}, found {found}")


def _verify_file(path: Path, size: int, sha256: str, content: bool) -> None:
    try:
        found = files.regular_size(path)
        if found != size:
            raise InvalidStep(f"{path}: size differs: expected {size} bytes, found {found} bytes")
        if content:
            digest = files.regular_digest(path)
            if digest != sha256:
                raise InvalidStep(f"{path}: sha256 differs: expected {sha256}, found {digest}")
    except OSError as error:
        raise _absent_or_unreadable(path, error) from error


def _absent_or_unreadable(path: Path, error: OSError) -> StepError:
    if error.errno in files.ABSENT:
        return InvalidStep(f"{path}: expected a regular file, found none: {error.strerror}")
    unreadable: StorageError = storage_error(f"reading {path}", error)
    return unreadable


def _shown(value: object) -> str:
    """A value for a message: short, and printable on any terminal."""
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        containers = [item for item in level if isinstance(item, (dict, list))]
        if not containers:
            return
        level = [
            child
            for item in containers
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    raise ValueError(f"nested deeper than {_DEEPEST}")


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("a number beyond 64 bits")
    return int(digits)


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")
