"""One process prepares, the others wait: a lock that works on shared file systems too.

It is a file made by exclusive creation (file locks do nothing on some shared file systems). Its
owner touches it every few seconds; who waits for it takes it over when its owner is a dead process
of this machine, or when nobody has touched it for long, measured by the waiting one's own clock.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BEAT_SECONDS = 5.0
_DEAD_SECONDS = 120.0
_POLL_SECONDS = 0.2


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock ``path`` (its folder must exist); waits while another process holds it.

    ``what`` says what the lock is held for, to the one who waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(8)
    _take(path, token, what)
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
        yield
    finally:
        done.set()
        thread.join()
        if _read(path).get("token") == token:
            path.unlink(missing_ok=True)


def _take(path: Path, token: str, what: str) -> None:
    owner = {
        "token": token,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "what": what,
    }
    temporary = path.with_name(f".{path.name}.{token}")
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
            if _is_dead(held) or time.monotonic() - seen[1] > _DEAD_SECONDS:
                _set_aside(path, held)
                continue
            if not told:
                told = True
                print(f"waiting for {held.get('host')}, which is {held.get('what')}", flush=True)
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


def _is_dead(owner: dict[str, object]) -> bool:
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    return _started(pid) != owner.get("started")


def _started(pid: int) -> str | None:
    """When the process of this number was started, by the kernel; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else f"{boot}/{rest[18]}"


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
