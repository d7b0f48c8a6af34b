"""Apptainer or Singularity on this machine: found and driven through spython."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from dlbhpc.errors import DlbhpcError

PROGRAMS = ("apptainer", "singularity")
_LAST_LINES = 25

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

    Raises DlbhpcError with its last lines when it fails.
    """
    from spython.utils import stream_command

    last: deque[str] = deque(maxlen=_LAST_LINES)
    with _in_folder(folder), _with_variables(variables):
        try:
            for line in stream_command(list(argv), output_type="both"):
                last.append(line.rstrip())
                say(line.rstrip())
        except subprocess.CalledProcessError as error:
            shown = "\n".join(last)
            raise DlbhpcError(
                f"{argv[0]} {argv[1]} failed (exit status {error.returncode}); its last lines:\n"
                f"{shown}"
            ) from error


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
