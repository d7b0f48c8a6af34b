"""What `doctor` looks at on this machine: one probe for each question, made to run at the edge.

Probes change nothing that stays; what they found is judged in ``host_checks``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import input_variables

_SECONDS = 30
_JOB_SECONDS = 120
_BLOCK = 1 << 20
CONTAINER_PROGRAMS = ("apptainer", "singularity")


@dataclass(frozen=True)
class Answer:
    """What a command said: its exit status (None: not installed, or it did not answer)."""

    status: int | None
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def words(self) -> str:
        """The first line, for a sentence."""
        return (self.text.strip().splitlines() or ["nothing"])[0]


def ask(*argv: str, seconds: float = _SECONDS, text: str = "") -> Answer:
    """Run a command with nobody's settings for Slurm in its environment; it never raises."""
    unset = set(input_variables())
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=seconds, env=environment, input=text
        )
    except FileNotFoundError:
        return Answer(None, f"{argv[0]} is not installed here")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(None, f"{argv[0]}: {error}")
    return Answer(done.returncode, done.stdout if done.returncode == 0 else done.stderr)


def munge(socket: str | None) -> Answer:
    """Make a credential and read it back; ``socket`` where munged does not listen at its usual."""
    where = ("--socket", socket) if socket else ()
    made = ask("munge", *where, "--no-input")
    return ask("unmunge", *where, text=made.text) if made.ok else made


def container(wanted: str | None) -> tuple[str, Answer] | None:
    """The container program that is installed, and its version: the wanted one, or else any."""
    for name in (wanted,) if wanted else CONTAINER_PROGRAMS:
        if shutil.which(name):
            return name, ask(name, "--version")
    return None


def file_system(path: Path) -> str:
    """The type of the file system that holds ``path`` (``nfs4``, ``lustre``, ``ext4``, …)."""
    kinds: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        # A later mount on the same folder hides an earlier one; blanks are written \\040.
        folder = before.split()[4].encode().decode("unicode_escape")
        kinds[folder] = after.split()[0]
    path = path.resolve()
    return next(
        (kinds[str(folder)] for folder in (path, *path.parents) if str(folder) in kinds), "unknown"
    )


@dataclass(frozen=True)
class TrialWrite:
    """A file of so many bytes was written and synced, in so many seconds; or why it was not."""

    bytes: int
    seconds: float
    free_bytes: int
    error: str = ""


def trial_write(folder: Path, size: int) -> TrialWrite:
    """Write as much as a checkpoint takes and remove it: a quota shows in no other way."""
    path = folder / f".dlbhpc-doctor-{secrets.token_hex(4)}"
    free, error, begun = shutil.disk_usage(folder).free, "", time.monotonic()
    try:
        with path.open("xb") as file:
            for start in range(0, size, _BLOCK):
                file.write(os.urandom(min(_BLOCK, size - start)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        error = failure.strerror or str(failure)
    finally:
        path.unlink(missing_ok=True)
    return TrialWrite(size, time.monotonic() - begun, free, error)


@dataclass(frozen=True)
class SharedTrial:
    """What a job on so many nodes did with the folder: who read what, or why there was no job."""

    nodes: int
    read: int
    written: int
    error: str = ""


def shared_trial(folder: Path, profile: Profile, nodes: int) -> SharedTrial:
    """Run a small job that reads a fresh file of ours on each node, and writes one beside it."""
    nonce = secrets.token_hex(16)
    path = folder / f".dlbhpc-doctor-{nonce[:8]}"
    # A node that does not see the folder is counted; it is no failure of the job.
    script = 'read -r nonce <"$1" && echo "$nonce" && echo "$nonce" >"$1.$SLURM_PROCID"; :'
    options = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--time=2"]
    for key in ("partition", "account", "qos", "constraint"):
        value = getattr(profile, key)
        options += [f"--{key}={value}"] if value else []
    path.write_text(f"{nonce}\n", encoding="utf-8")
    try:
        answer = ask(
            "srun", *options, f"--immediate={_JOB_SECONDS // 2}", "--job-name=dlbhpc-doctor",
            "sh", "-c", script, "sh", str(path), seconds=_JOB_SECONDS,
        )  # fmt: skip
        written = [
            item for item in folder.glob(f"{path.name}.*") if item.read_text().strip() == nonce
        ]
        read = answer.text.split().count(nonce) if answer.ok else 0
        return SharedTrial(nodes, read, len(written), "" if answer.ok else answer.text.strip())
    finally:
        for left in (path, *folder.glob(f"{path.name}.*")):
            left.unlink(missing_ok=True)
