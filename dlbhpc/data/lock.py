"""One process prepares, the others wait: a lock that works on shared file systems too.

It is a file made by exclusive creation (file locks do nothing on some shared file systems). A
process of this machine that ended loses it at once; one that lives keeps it, however long it is
stopped. An owner elsewhere touches it every few seconds, and loses it when nobody has touched it
for long, measured by the waiting one's own clock.

Such an owner may wake up again. So each owner builds in a folder of its own, and looks whether the
lock is still its own right before it renames what it built into its place.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError

_BEAT_SECONDS = 5.0
_DEAD_SECONDS = 120.0
_POLL_SECONDS = 0.2


class LockLost(DlbhpcError):
    """Another process took the lock over while its owner was stopped."""


@dataclass(frozen=True)
class Lock:
    """A lock that is held; ``what`` says what for."""

    path: Path
    token: str
    what: str

    def check(self) -> None:
        """Raise LockLost when another process has taken the lock over."""
        if _read(self.path).get("token") != self.token:
            raise LockLost(
                f"this process was stopped for so long that another took {self.path} over from it "
                f"({self.what}): run the command again, it waits for the other one"
            )

    def workplace(self, target: Path, *, keep: bool = False) -> Path:
        """The owner's own folder beside ``target``, in which it builds what it will publish there.

        It is empty, or holds what a former owner left when that is to be kept. Raises DlbhpcError
        when a symlink to nothing is in the target's place.
        """
        if target.is_symlink() and not target.exists():
            raise DlbhpcError(
                f"{target} is a symlink to {target.readlink()}, which is not there: remove the "
                "link, or bring back what it names"
            )
        own = self._own(target)
        for left in sorted(target.parent.glob(f".{target.name}.building-*")):
            # Moved, so that a former owner that wakes up does not find it any more.
            if own.exists():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.rename(own)
        if not keep:
            shutil.rmtree(own, ignore_errors=True)
        own.mkdir(exist_ok=True)
        return own

    def publish(self, target: Path, aside: str) -> Path | None:
        """Rename the workplace of ``target`` to it; raises LockLost instead of disturbing another.

        What is there already may be in use: it is not removed, but set aside as ``TARGET.aside``
        (with a number where that is taken). Returns where it lies now, or None.
        """
        self.check()
        moved = None
        if target.exists():
            moved = _free_name(target.with_name(f"{target.name}.{aside}"))
            target.rename(moved)
        self._own(target).rename(target)
        return moved

    def _own(self, target: Path) -> Path:
        return target.with_name(f".{target.name}.building-{self.token}")


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[Lock]:
    """Hold the lock ``path``; waits while another process holds it.

    ``what`` says what the lock is held for, to the one who waits. Raises LockLost when the work
    fails because another process took the lock over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock(path, secrets.token_hex(8), what)
    _take(lock)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_SECONDS):
            try:
                os.utime(path)
            except FileNotFoundError:
                return
            except OSError:
                continue  # a file system that stumbles: the next beat may come through

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lock
    except Exception:
        lock.check()  # its workplace may have been taken from under it
        raise
    finally:
        done.set()
        thread.join()
        if _read(path).get("token") == lock.token:
            path.unlink(missing_ok=True)


def _take(lock: Lock) -> None:
    path = lock.path
    owner = {
        "token": lock.token,
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "what": lock.what,
    }
    temporary = path.with_name(f".{path.name}.{lock.token}")
    temporary.write_text(json.dumps(owner), encoding="utf-8")
    told, seen = False, (0, time.monotonic())
    try:
        while True:
            try:
                # A link appears with its content, or not at all.
                os.link(temporary, path)
                return
            except FileExistsError:
                pass
            try:
                touched = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if touched != seen[0]:
                seen = (touched, time.monotonic())
            held = _read(path)
            lives = _lives(held)
            if lives is False or (lives is None and time.monotonic() - seen[1] > _DEAD_SECONDS):
                _set_aside(path, held)
                continue
            if not told:
                told = True
                print(
                    f"waiting for process {held.get('pid')} on {held.get('host')}, which is "
                    f"{held.get('what')}",
                    flush=True,
                )
            time.sleep(_POLL_SECONDS)
    finally:
        temporary.unlink(missing_ok=True)


def _set_aside(path: Path, dead: dict[str, object]) -> None:
    aside = path.with_name(f".{path.name}.dead-{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if _read(aside).get("token") != dead.get("token"):
        # Between the look and the rename another took it: give it back.
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
    aside.unlink()


def _lives(owner: dict[str, object]) -> bool | None:
    """Whether the owner still runs; None where that cannot be seen from here."""
    pid, machine = owner.get("pid"), _machine()
    if machine is None or owner.get("machine") != machine or not isinstance(pid, int) or pid < 1:
        return None
    started = _started(pid)
    if started is None:
        try:
            os.kill(pid, 0)
        except PermissionError:
            return None  # another user's process, which some systems hide
        except ProcessLookupError:
            pass
    return started is not None and started == owner.get("started")


def _machine() -> str | None:
    """What makes a process's number and start time mean the same: one boot, one pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When the process of this number was started; None if there is none, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, blanks included.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _free_name(path: Path) -> Path:
    """``path``, or with the first number behind it that is not taken."""
    number = 1
    free = path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
