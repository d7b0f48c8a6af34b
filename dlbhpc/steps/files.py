"""The system calls that step directories are made of; nothing above this file makes one.

pathlib has no descriptors, flags or fsync, hence ``os``. Functions raise ``OSError`` as it comes.
"""
# ruff: noqa: PTH102, PTH104, PTH108, PTH112, PTH116, PTH208

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

# Errors that say for certain that no regular file is there, rather than that it cannot be reached.
ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})

_READ_CHUNK = 1 << 20


def make_folder(path: Path) -> None:
    """Make a folder that must not exist yet."""
    os.mkdir(path)


def ensure_folder(path: Path) -> None:
    """Make a folder and its parents where missing, durably; refuse a link in its place."""
    _make_folders(path)
    if not is_folder(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def exists(path: Path) -> bool:
    """Whether anything has this name, be it a link to nowhere."""
    return os.path.lexists(path)


def device(path: Path) -> int:
    """The file system that ``path`` lies on."""
    return os.stat(path).st_dev


def names(path: Path) -> list[str]:
    """The names in a folder, sorted; none when there is no such folder."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def create(path: Path) -> int:
    """Open a new file for writing; what has the name already is neither followed nor replaced."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write every byte: one call may take only a part (at most 2 GiB on Linux)."""
    while data:
        written = os.write(descriptor, data)
        if written == 0:
            raise OSError(errno.EIO, "a write took nothing")
        data = data[written:]


def finish(descriptor: int, size: int, path: Path) -> None:
    """Sync and close a written file. A save counts only when each of these reports success."""
    try:
        os.fsync(descriptor)
        found = os.fstat(descriptor).st_size
    except BaseException:
        abandon(descriptor)
        raise
    os.close(descriptor)  # not within the try: a failed close has closed all the same
    if found != size:
        raise OSError(errno.EIO, f"{size} bytes written, {found} on disk", str(path))


def abandon(descriptor: int) -> None:
    """Close a file that no longer matters, for which another error is under way already."""
    try:
        os.close(descriptor)
    except OSError:
        pass


def write_file(path: Path, data: bytes) -> None:
    """Write a new file, durably."""
    descriptor = create(path)
    try:
        write_all(descriptor, memoryview(data))
    except BaseException:
        abandon(descriptor)
        raise
    finish(descriptor, len(data), path)


def replace_file(target: Path, data: bytes, temporary: Path) -> None:
    """Put ``data`` under ``target`` in one act; readers see the old file or the new one."""
    try:
        write_file(temporary, data)
        rename(temporary, target, lambda: read_regular(target, len(data)) == data)
    except OSError:
        remove(temporary)
        raise
    sync_folder(target.parent)


def rename(source: Path, target: Path, arrived: Callable[[], bool]) -> None:
    """Rename, and believe ``arrived`` rather than the answer.

    A network file system may repeat a request whose answer was lost, and then report that the
    source is missing although the rename took place.
    """
    try:
        os.rename(source, target)
    except OSError:
        if not _holds(arrived):
            raise
    else:
        if not arrived():
            raise OSError(errno.EIO, "rename reported success but did not happen", str(target))


def move(source: Path, target: Path) -> None:
    """Rename to a name that nobody else uses."""
    rename(source, target, lambda: exists(target) and not exists(source))


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the file system knows such a thing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # fsync(2): this kind of file cannot be synced
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file or a folder as far as possible; what is left is removed another time."""
    try:
        if is_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except OSError:
        pass


def open_regular(path: Path) -> int:
    """Open a regular file for reading: no link is followed, no pipe waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))


def read_regular(path: Path, limit: int) -> bytes:
    """At most ``limit`` bytes and one more, by which the caller sees that there are more."""
    with open(open_regular(path), "rb") as file:
        return file.read(limit + 1)


def regular_size(path: Path) -> int:
    """The size of a regular file in bytes."""
    descriptor = open_regular(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def regular_digest(path: Path) -> str:
    """The SHA-256 of a regular file's content."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_CHUNK))
    with open(open_regular(path), "rb", buffering=0) as file:
        while True:
            count = file.readinto(buffer)
            if not count:
                return digest.hexdigest()
            digest.update(buffer[:count])


def _make_folders(path: Path) -> None:
    if os.path.isdir(path):
        return
    _make_folders(path.parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        return  # another made it first, or it is no folder, which the caller sees
    sync_folder(path.parent)


def _holds(arrived: Callable[[], bool]) -> bool:
    try:
        return arrived()
    except OSError:
        return False
