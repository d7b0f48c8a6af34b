"""Reading a SIF file without Apptainer: where its squashfs partition lies, and what it digests to.

The file's header, and each descriptor, hold a UUID and times of the build: two builds of the same
content differ there. The content is the squashfs partition, and its digest is the image's identity.

Layout (SIF version 01, little-endian): a launch script of 32 bytes, the magic ``SIF_MAGIC`` (10),
version (3), architecture (3), UUID (16), then eight 64-bit numbers: creation and modification
time, free and all descriptors, their offset and size, and the offset and size of the data. A
descriptor is 585 bytes: data type (int32), used (1 byte), id, group and link (uint32 each), offset,
size and padded size, creation and modification time, owner and group (int64 each), a name of 128
bytes, and 384 bytes which, for a partition, begin with its file system and kind (int32 each).
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<iBIII7q128s384s")
_PARTITION_EXTRA = struct.Struct("<ii")
_MAGIC = b"SIF_MAGIC\0"
_VERSION = b"01\0"
_PARTITION = 0x4004
_SQUASHFS = 1
_PRIMARY = 2
_SQUASHFS_MAGIC = b"hsqs"
_MOST_DESCRIPTORS = 4096
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Partition:
    """Where a partition's bytes lie in the file."""

    offset: int
    size: int


def content_partition(path: Path) -> Partition:
    """The squashfs partition that holds the image's root file system.

    Raises DlbhpcError for a file that is no SIF, is cut short, or has no such partition.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size:
                raise _damaged(path, "it is too short")
            _, magic, version, *_, total, offset, _, _, _ = _HEADER.unpack(head)
            if magic != _MAGIC or version != _VERSION:
                raise _damaged(path, "it does not begin as a SIF file does")
            if not 0 < total <= _MOST_DESCRIPTORS or not 0 < offset < size:
                raise _damaged(path, "its header is not whole")
            file.seek(offset)
            table = file.read(total * _DESCRIPTOR.size)
            if len(table) < total * _DESCRIPTOR.size:
                raise _damaged(path, "it is cut short")
            partition = _primary(table)
            if partition is None:
                raise _damaged(path, "it holds no squashfs partition")
            if partition.size <= 0 or partition.offset + partition.size > size:
                raise _damaged(path, "it is cut short")
            file.seek(partition.offset)
            if file.read(len(_SQUASHFS_MAGIC)) != _SQUASHFS_MAGIC:
                raise _damaged(path, "its partition is not squashfs")
            return partition
    except OSError as error:
        raise DlbhpcError(f"the image {path} cannot be read: {error.strerror}") from error


def _primary(table: bytes) -> Partition | None:
    for fields in _DESCRIPTOR.iter_unpack(table):
        kind, used, offset, size, extra = fields[0], fields[1], fields[5], fields[6], fields[13]
        if not used or kind != _PARTITION:
            continue
        file_system, partition_kind = _PARTITION_EXTRA.unpack_from(extra)
        if (file_system, partition_kind) == (_SQUASHFS, _PRIMARY):
            return Partition(offset, size)
    return None


@dataclass(frozen=True)
class Digests:
    """SHA-256 of a SIF file as a whole, and of its squashfs partition."""

    sif: str
    content: str


def read_digests(path: Path) -> Digests:
    """Both digests in one pass over the file. Raises DlbhpcError as content_partition does."""
    partition = content_partition(path)
    whole, content = hashlib.sha256(), hashlib.sha256()
    position, end = 0, partition.offset + partition.size
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            whole.update(block)
            first = max(partition.offset - position, 0)
            last = min(end - position, len(block))
            if first < last:
                content.update(block[first:last])
            position += len(block)
    return Digests(whole.hexdigest(), content.hexdigest())


def _damaged(path: Path, what: str) -> DlbhpcError:
    return DlbhpcError(f"the image {path} is damaged: {what}; build it again, or copy it again")
