"""One attempt begins, on the batch host: what is done once before the tasks start."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.command import attempt_argv, compose_argv
from dlbhpc.errors import DlbhpcError
from dlbhpc.exit_status import USAGE
from dlbhpc.files import read_json, write_bytes, write_json
from dlbhpc.images.use import enter_image
from dlbhpc.inputs.teaching import ensure_adapted_teacher
from dlbhpc.layout import ADAPTERS, OutputLayout
from dlbhpc.records import to_plain
from dlbhpc.run import completion
from dlbhpc.run.ending import write_end
from dlbhpc.run.history import Attempt, attempts_without_step, read_attempts
from dlbhpc.run.identity import config_digest, identity_digest
from dlbhpc.run.inputs import check_same_inputs, ensure_data, verify_inputs
from dlbhpc.run.reasons import NO_PROGRESS_LIMIT, RULES, Reason
from dlbhpc.run.record import KEEP_LAST, Run, read_run
from dlbhpc.run.teacher import settle_teacher
from dlbhpc.steps import STATE, begin_attempt, list_steps, recover
from dlbhpc.steps.files import sync_folder
from dlbhpc.upstream.composed import composed_yaml

SCHEMA_VERSION = 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """The job that an attempt belongs to, and its scheduler (local or slurm).

    ``submission`` is the token that all jobs of one submission share, ``node_list`` what Slurm
    calls the job's nodes.
    ``log`` is the log's path and how long it was when the attempt began, None where it has none.
    """

    job_id: str
    restart_count: int
    scheduler: str = "local"
    submission: str = ""
    node_list: str = ""
    log: Mapping[str, object] | None = None

    def record(self) -> dict[str, object]:
        """What an attempt's record says of its job."""
        return {
            "job_id": self.job_id,
            "restart_count": self.restart_count,
            "submission": self.submission,
            "node_list": self.node_list,
            "log": self.log,
        }


def begin(output: OutputLayout, job: Job, say: Say) -> Path | None:
    """Begin an attempt: fence, verify, recover, place, compose. Returns the attempt's folder.

    Returns None when the run is complete already. Raises DlbhpcError when the run cannot begin.
    """
    if is_complete(output, say):
        return None
    run = read_run(output)
    earlier = read_attempts(output)
    number = begin_attempt(output.steps)
    while (folder := output.attempt(number)).exists():
        # The steps folder was lost or set aside: the numbers go on behind the attempts' folders.
        number = begin_attempt(output.steps)
    folder.mkdir(parents=True)
    # Killed before its record is whole, it is still an attempt that made no step.
    newest = max((record.step for record in list_steps(output.steps)), default=0)
    begun = {
        "schema_version": SCHEMA_VERSION,
        "attempt": number,
        "resumed_from": newest or None,
        **job.record(),
    }
    write_json(folder / "attempt.json", begun)
    try:
        _prepare(run, folder, number, job, earlier, say)
    except Exception as error:
        # Or the run would look as the attempt before left it.
        write_end(folder, Reason.NOT_BEGUN, USAGE, str(error))
        raise
    return folder


def is_complete(output: OutputLayout, say: Say) -> bool:
    """Whether the run is complete, and says so: then nothing is to be done, nothing changed.

    Only sizes are looked at, not content. Raises DlbhpcError when the folder holds another run.
    """
    completed = completion.read_completed(output)
    if completed is None:
        return False
    completion.check_same_run(output, completed, dict(read_run(output).identity))
    completion.check_intact(output, completed, content=False)
    say(f"already complete at step {completed['step']}: nothing to do")
    return True


def _prepare(
    run: Run, folder: Path, number: int, job: Job, earlier: Sequence[Attempt], say: Say
) -> None:
    output = run.launch.output
    output.temporary.mkdir(exist_ok=True)
    run = settle_teacher(run)
    manifest = verify_inputs(run.launch, run.image)
    check_same_inputs(run, manifest)
    # Only behind that: nothing is read or written at length for a run that does not go on, and
    # what it began with is not replaced by what another teacher adapts to.
    ensure_data(run.launch)
    adaptation = ensure_adapted_teacher(run.launch, begun_with=run.identity["teacher"])
    recovery = recover(output.steps, contract=dict(run.contract), world=run.launch.geometry.world)
    for skipped in recovery.skipped:
        say(f"step directory {skipped.name} is not used: {skipped.reason}")
    newest = recovery.record.step if recovery.record else 0
    fruitless = attempts_without_step(earlier, newest, job.submission or job.job_id)
    if fruitless >= NO_PROGRESS_LIMIT:
        raise DlbhpcError(f"{Reason.NO_PROGRESS.value}: {RULES[Reason.NO_PROGRESS].advice}")
    if recovery.path is not None:
        _place(recovery.path / STATE, output.last_checkpoint)
        say(f"attempt {number} goes on from step {newest} of {run.total_steps}")
    else:
        # A checkpoint of unknown origin must not be taken for a state of this run; and it may be
        # all that is left of one.
        if output.last_checkpoint.is_file():
            aside = output.last_checkpoint.with_name(f"last.ckpt.set-aside-{number:05d}")
            output.last_checkpoint.replace(aside)
            say(f"{output.last_checkpoint} is of unknown origin: set aside as {aside.name}")
        say(f"attempt {number} starts at step 0 of {run.total_steps}: no complete step directory")
    _compose(run, adaptation)
    _write_attempt(run, folder, number, job, newest)


def task_command(folder: Path, host: Mapping[str, str]) -> tuple[list[str], dict[str, str], Path]:
    """What one task of the attempt executes: argv, environment and working directory.

    ``host`` is the environment of this task on its node.
    """
    attempt = read_json(folder / "attempt.json")
    run = read_run(OutputLayout(Path(attempt["output"])))
    argv = attempt_argv(run.launch.argv, resume=attempt["resumed_from"] is not None)
    watcher = run.launch.recipe.upstream.watcher
    if watcher is not None:
        argv[2:2] = [str(ADAPTERS / f"{watcher}.py")]
    environment = dict(run.launch.environment)
    environment["DLBHPC_ATTEMPT_FILE"] = str(folder / "attempt.json")
    # A port that was free on the first node when the attempt began: two jobs there do not meet.
    environment["MASTER_PORT"] = str(attempt["master_port"])
    return _program(run, argv, environment, host)


def _program(
    run: Run, argv: Sequence[str], own: Mapping[str, str], host: Mapping[str, str]
) -> tuple[list[str], dict[str, str], Path]:
    """How the upstream's program is started here, through the run's image if it has one."""
    if run.image is None:
        return _with_interpreter(argv), upstream_environment(host, own), run.launch.source
    return (*enter_image(run.image, run.launch, argv, own, host), Path("/"))


def _place(state: Path, target: Path) -> None:
    """Copy the recovered state to where the upstream resumes from.

    A copy, not a link: some upstreams write over their last checkpoint in place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        raise DlbhpcError(f"{target} is a folder: move it away, the upstream resumes from a file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(state, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def _compose(run: Run, adaptation: Mapping[str, Any] | None) -> None:
    """Let the upstream compose its configuration, and compare it with the run's first one."""
    output = run.launch.output
    argv, environment, folder = _program(
        run, compose_argv(run.launch.argv), run.launch.environment, os.environ
    )
    done = subprocess.run(argv, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise DlbhpcError(
            f"{run.launch.recipe.upstream.name} cannot compose its configuration "
            f"(exit status {done.returncode}):\n{done.stderr.strip()[-4000:]}"
        )
    composed = composed_yaml(done.stdout, run.launch.recipe.upstream)
    sha256 = config_digest(composed)
    if output.composed_config.exists():
        recorded = config_digest(output.composed_config.read_text(encoding="utf-8"))
        if recorded != sha256:
            raise DlbhpcError(
                f"the upstream composes another configuration than {output.composed_config}, "
                "which this run began with: undo what changed, or choose another --output"
            )
    else:
        write_bytes(output.composed_config, composed.encode())
    fields = {**run.identity, "composed_config": sha256}
    try:
        recorded_identity = read_json(output.provenance).get("identity")
    except DlbhpcError:
        # Missing, or torn by a crash: everything in it is known here.
        recorded_identity = None
    if recorded_identity not in (None, identity_digest(fields)):
        raise DlbhpcError(
            f"{output.provenance} names another identity than this run has: undo what changed, "
            "or choose another --output"
        )
    if recorded_identity is None:
        write_json(
            output.provenance,
            {
                "schema_version": SCHEMA_VERSION,
                "identity": identity_digest(fields),
                "identity_fields": fields,
                "teacher_adaptation": adaptation,
                "time": time.time(),
            },
        )


def _write_attempt(run: Run, folder: Path, number: int, job: Job, newest: int) -> None:
    geometry = run.launch.geometry
    write_json(
        folder / "attempt.json",
        {
            "schema_version": SCHEMA_VERSION,
            "attempt": number,
            "output": str(run.launch.output.folder),
            "steps_dir": str(run.launch.output.steps),
            "stop_file": str(folder / "stop"),
            "progress_file": str(folder / "progress.json"),
            "events_file": str(folder / "events.jsonl"),
            "contract": dict(run.contract),
            "nodes": geometry.nodes,
            "gpus_per_node": geometry.gpus_per_node,
            "total_steps": run.total_steps,
            "milestones": list(run.milestones),
            "milestone_every": None,
            "save_every_seconds": run.save_every_seconds,
            "keep_last": KEEP_LAST,
            "export_bf16": run.launch.recipe.export_bf16,
            "resumed_from": newest or None,
            **job.record(),
            "image": to_plain(run.image),
            "host": socket.gethostname(),
            "master_port": _free_port(),
            "pid": os.getpid(),
            "time": time.time(),
        },
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port


def upstream_environment(base: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with the upstream's on top; no Python settings leak in."""
    kept = {key: value for key, value in base.items() if not key.startswith("PYTHON")}
    return {**kept, "PYTHONNOUSERSITE": "1", **own}


def _with_interpreter(argv: Sequence[str]) -> list[str]:
    """The recorded command begins with the bare word python: here it is the one that runs us."""
    return [sys.executable, *argv[1:]]
