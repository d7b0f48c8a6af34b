"""Apptainer or Singularity on this machine: found and driven through spython."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from dlbhpc.errors import DlbhpcError

PROGRAMS = ("apptainer", "singularity")
_LAST_LINES = 25
_IN_ITS_OWN_GROUP = ("setsid", "sh", "-c", 'echo "$$" && exec "$@"', "sh")
"""What goes before a command, which then says its process group first."""
_SECONDS_TO_END = 30.0
"""How long a program that is asked to end has time for it."""

INSTALL = (
    "install Apptainer (1.1 or newer: packages of its releases, or `apptainer` from EPEL, Conda or "
    "Spack) or SingularityCE, or load the site's module, so that `apptainer` or `singularity` is "
    "on PATH"
)


_FAMILIES = ("APPTAINER", "SINGULARITY")
_PLACES = frozenset(
    f"{family}_{name}" for family in _FAMILIES for name in ("CACHEDIR", "TMPDIR", "CONFIGDIR")
)
"""Settings that say where the program keeps its own files, and nothing of what is in an image."""


def without_settings(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """An environment without the caller's own settings of the program.

    APPTAINER_BIND, _OVERLAY, APPTAINERENV_… and the others would silently change what is in the
    image, and a run's identity knows nothing of them. ``keep`` are names that the profile sets.
    """
    return {
        key: value
        for key, value in environment.items()
        if not key.startswith(_FAMILIES) or key in _PLACES or key in keep
    }


def find_program() -> str:
    """The builder on PATH. Raises DlbhpcError that says what to install."""
    from spython.utils import check_install

    for program in PROGRAMS:
        if shutil.which(program) and check_install(program):
            return program
    raise DlbhpcError(f"neither Apptainer nor Singularity is here: {INSTALL}")


def program_version(program: str) -> str:
    """What the program says of itself, as ``apptainer version 1.3.4``."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    return done.stdout.strip()


def run(
    argv: Sequence[str], folder: Path, variables: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Run the program in ``folder``, showing its lines as they come.

    Raises DlbhpcError with its last lines when it fails. Whatever else ends this, as Ctrl-C does,
    ends the program and all that it has started.
    """
    from spython.utils import stream_command

    last: deque[str] = deque(maxlen=_LAST_LINES)
    with _in_folder(folder), _with_variables(variables), contextlib.ExitStack() as stack:
        try:
            lines = stream_command([*_IN_ITS_OWN_GROUP, *argv], output_type="both")
            stack.callback(end_group, int(next(lines)))
            for line in lines:
                last.append(line.rstrip())
                say(line.rstrip())
        except subprocess.CalledProcessError as error:
            shown = "\n".join(last)
            raise DlbhpcError(
                f"{argv[0]} {argv[1]} failed (exit status {error.returncode}); its last lines:\n"
                f"{shown}"
            ) from error


def end_group(group: int) -> None:
    """End what is left of a process group and wait until it is gone.

    It is asked first, since what has mounted something then unmounts it, and killed if it is slow.
    """
    for signum in (signal.SIGTERM, signal.SIGKILL):
        patience = time.monotonic() + _SECONDS_TO_END
        if not _lives(group):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signum)
        while _lives(group) and time.monotonic() < patience:
            time.sleep(0.05)


def _lives(group: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name stands in parentheses and may hold anything, blanks included.
            state, _, of, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(of) == group and state not in "ZX":
            return True
    return False


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """TERM and HUP unwind the stack, as Ctrl-C does: the exit status is 128 + the signal.

    What follows of them is ignored, so that what unwinds is not disturbed. Only the main thread
    hears of signals; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGHUP)}
    # One that is ignored, as under nohup, stays so.
    taken = [signum for signum, handler in before.items() if handler != signal.SIG_IGN]

    def end(signum: int, frame: object) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + signum)

    for signum in taken:
        signal.signal(signum, end)
    try:
        yield
    finally:
        for signum in taken:
            signal.signal(signum, before[signum] or signal.SIG_DFL)


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    # spython starts its commands where we are, and the definition names its files from there.
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    # spython gives its commands our own environment.
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({**without_settings(before), **variables})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
