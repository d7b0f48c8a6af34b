"""Folders in the format of ``datasets.save_to_disk``, written and read at the level of Arrow.

What describes the columns is written in the words of ``datasets`` 2, which 2.15 to 5 read: newer
ones call the same feature ``List``, which older ones cannot read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.data.manifest import ManifestError

if TYPE_CHECKING:
    import pyarrow

Columns = Mapping[str, str]
"""Columns of lists, and the type of their values (int32, uint8)."""
STATE, INFO = "state.json", "dataset_info.json"
"""What `datasets` keeps beside the Arrow files: which they are, and what their columns are."""
_METADATA = b"huggingface"


def features(columns: Columns) -> dict[str, Any]:
    """The description of ``columns`` that every version of ``datasets`` reads."""
    return {
        name: {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "Sequence"}
        for name, dtype in columns.items()
    }


def schema(columns: Columns) -> pyarrow.Schema:
    """The Arrow schema of ``columns``, with the description that ``datasets`` keeps in it."""
    import pyarrow

    described = json.dumps({"info": {"features": features(columns)}})
    fields = [(name, pyarrow.list_(getattr(pyarrow, type_)())) for name, type_ in columns.items()]
    return pyarrow.schema(fields, metadata={_METADATA: described.encode()})


def file_name(index: int, count: int) -> str:
    """The name that ``save_to_disk`` gives to one of the files of a split."""
    return f"data-{index:05d}-of-{count:05d}.arrow"


def write_file(path: Path, columns: Columns, batches: Iterable[pyarrow.RecordBatch]) -> int:
    """Write a file of ``columns`` as :func:`write_stream` does."""
    return write_stream(path, schema(columns), batches)


def write_stream(path: Path, kind: pyarrow.Schema, batches: Iterable[pyarrow.RecordBatch]) -> int:
    """Write a file whole and durably, or not at all; returns how many rows it holds."""
    import pyarrow

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    rows = 0
    try:
        with temporary.open("wb") as file:
            with pyarrow.ipc.new_stream(file, kind) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def finish_split(
    folder: Path, columns: Columns, names: Iterable[str], split: str
) -> tuple[str, ...]:
    """Write what makes the files ``names`` of a folder one dataset; ``split`` is its name.

    Returns the names of what was written.
    """
    names = list(names)
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": hashlib.sha256("\n".join([split, *names]).encode()).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    info = {
        "citation": "",
        "description": "",
        "features": features(columns),
        "homepage": "",
        "license": "",
    }
    sidecars = {STATE: state, INFO: info}
    for name, content in sidecars.items():
        write_text(folder / name, json.dumps(content, indent=2) + "\n")
    return tuple(sidecars)


def write_text(path: Path, text: str) -> None:
    """Write a small file durably; its folder is not published yet."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def data_files(folder: Path) -> list[Path]:
    """The Arrow files of a dataset folder, in order. Raises ManifestError for a damaged one."""
    state = folder / STATE
    try:
        entries = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
        names = [str(entry["filename"]) for entry in entries]
    except FileNotFoundError:
        raise ManifestError(f"{folder} is no dataset: there is no state.json in it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{state} is damaged ({error}): prepare the data again") from None
    # The names are data: none may lead out of the folder.
    if wrong := [name for name in names if Path(name).name != name]:
        raise ManifestError(f"{state} names {wrong[0]!r}, which is no file of its folder")
    return [folder / name for name in names]


def read_file(path: Path) -> Iterator[pyarrow.RecordBatch]:
    """The record batches of an Arrow file, mapped into memory.

    Raises ManifestError for a file that is torn or is no Arrow file.
    """
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as reader:
            yield from reader
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise _unreadable(path, error) from error


def file_schema(path: Path) -> pyarrow.Schema:
    """The schema of an Arrow file. Raises ManifestError as :func:`read_file` does."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as reader:
            return reader.schema
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise _unreadable(path, error) from error


def lists(values: pyarrow.Array, rows: int, length: int) -> pyarrow.ListArray:
    """``values`` (rows * length of them) as ``rows`` lists of ``length``, without a copy."""
    import numpy
    import pyarrow

    offsets = numpy.arange(0, rows * length + 1, length, dtype=numpy.int32)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values)


def _unreadable(path: Path, error: Exception) -> ManifestError:
    return ManifestError(
        f"{path} cannot be read ({error}): it is torn or no Arrow file; prepare the data again"
    )
