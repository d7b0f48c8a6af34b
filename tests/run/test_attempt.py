"""What is done once before the tasks of an attempt, and once after them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.command import Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.exit_status import FENCED, REQUEUE
from dlbhpc.recipe.model import Teacher
from dlbhpc.run import attempt as attempts
from dlbhpc.run import inputs
from dlbhpc.run.attempt import Job, begin, task_command, upstream_environment
from dlbhpc.run.completion import read_completed
from dlbhpc.run.ending import end, settle, want_requeue
from dlbhpc.run.history import read_attempts
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.reasons import Cause, Reason
from dlbhpc.run.record import Run, write_records
from dlbhpc.steps import begin_attempt, open_publication

Write = Callable[[Path, Any], bytes]
JOB = Job("7", 0)


@pytest.fixture
def submitted(run: Run) -> Run:
    """A run whose records are written, as a submission leaves it."""
    write_records(run)
    return run


@pytest.fixture
def said() -> list[str]:
    return []


def train_to(run: Run, folder: Path, step: int, write_checkpoint: Write) -> None:
    """What the callback does in the tasks of an attempt: publish a step."""
    number = json.loads((folder / "attempt.json").read_text())["attempt"]
    data = write_checkpoint(folder / "state", {"global_step": step})
    with open_publication(run.launch.output.steps, step=step, attempt=number) as publication:
        with publication.create("training_state.pt") as file:
            file.write(data)
        publication.commit(contract=dict(run.contract), world=1)


def begun(run: Run, said: list[str], job: Job = JOB) -> Path:
    folder = begin(run.launch.output, job, said.append)
    assert folder is not None
    return folder


def test_a_fresh_run_starts_at_step_0_and_does_not_resume(submitted: Run, said: list[str]) -> None:
    # A checkpoint of unknown origin must not be taken up.
    last = submitted.launch.output.last_checkpoint
    last.parent.mkdir()
    last.write_bytes(b"somebody's")
    folder = begun(submitted, said)
    assert json.loads((folder / "attempt.json").read_text())["resumed_from"] is None
    assert not last.exists()
    aside = last.with_name("last.ckpt.set-aside-00001")
    assert aside.read_bytes() == b"somebody's", "it may be all that is left of a run"
    assert "no complete step directory" in said[-1]
    argv, environment, working_directory = task_command(folder, {})
    assert "checkpointing.resume_from_ckpt=false" in argv
    assert environment["DLBHPC_ATTEMPT_FILE"] == str(folder / "attempt.json")
    assert working_directory == submitted.launch.source


def test_the_composed_config_is_recorded_before_the_launch(submitted: Run, said: list[str]) -> None:
    begun(submitted, said)
    text = submitted.launch.output.composed_config.read_text()
    assert "mode: train" in text
    assert "${" not in text
    provenance = json.loads(submitted.launch.output.provenance.read_text())
    assert provenance["identity_fields"]["seed"] == 42
    assert len(provenance["identity"]) == 64


def test_the_next_attempt_goes_on_from_the_newest_step(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    folder = begun(submitted, said)
    train_to(submitted, folder, 3, write_checkpoint)
    assert end(folder, REQUEUE, Cause.PREEMPTION, said.append) == REQUEUE
    second = begun(submitted, said)
    assert json.loads((second / "attempt.json").read_text())["resumed_from"] == 3
    state = submitted.launch.output.steps / "step-00000003" / "training_state.pt"
    last = submitted.launch.output.last_checkpoint
    assert last.read_bytes() == state.read_bytes()
    # Some upstreams write over their last checkpoint in place.
    assert last.stat().st_ino != state.stat().st_ino
    assert "checkpointing.resume_from_ckpt=true" in task_command(second, {})[0]
    assert [(a.number, a.reason) for a in read_attempts(submitted.launch.output)] == [
        (1, "preempted"),
        (2, None),
    ]


def test_a_run_completes_and_a_requeued_one_changes_nothing(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    folder = begun(submitted, said)
    train_to(submitted, folder, submitted.total_steps, write_checkpoint)
    assert end(folder, 0, Cause.NOTHING, said.append) == 0
    output = submitted.launch.output
    before = {path: path.stat().st_mtime_ns for path in output.folder.rglob("*")}
    assert begin(output, Job("7", 1), said.append) is None
    assert {path: path.stat().st_mtime_ns for path in output.folder.rglob("*")} == before
    completed = read_completed(output)
    assert completed is not None
    provenance = json.loads(output.provenance.read_text())
    assert completed["identity"] == provenance["identity"]


def test_success_before_the_last_step_is_not_believed(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    folder = begun(submitted, said)
    train_to(submitted, folder, submitted.total_steps - 1, write_checkpoint)
    assert end(folder, 0, Cause.NOTHING, said.append) == 1
    assert read_completed(submitted.launch.output) is None
    assert json.loads((folder / "end.json").read_text())["reason"] == "stopped early"


def test_an_upstreams_exit_status_is_preserved(submitted: Run, said: list[str]) -> None:
    folder = begun(submitted, said)
    assert end(folder, 139, Cause.NOTHING, said.append) == 139
    assert "upstream failed (exit status 139)" in said[-1]


def test_what_the_training_said_counts_more_than_the_highest_status_of_all_tasks(
    submitted: Run, said: list[str]
) -> None:
    folder = begun(submitted, said)
    (folder / "events.jsonl").write_text('{"event": "leaving", "status": 75}\n')
    assert end(folder, 143, Cause.PREEMPTION, said.append) == REQUEUE
    assert json.loads((folder / "end.json").read_text())["reason"] == "preempted"


def test_data_that_leave_a_rank_without_a_sample_are_refused(root: Path) -> None:
    request = Request(recipe="reference_mdlm", root=root, gpus_per_node=8, trial={"batch": 8})
    with pytest.raises(DlbhpcError, match="100 samples in batches of 8 leave 4"):
        prepare_run(plan_launch(request), "local", save_every_seconds=300, grace_seconds=30)


def test_three_attempts_without_a_step_are_enough(submitted: Run, said: list[str]) -> None:
    statuses = [
        end(begun(submitted, said), REQUEUE, Cause.PREEMPTION, said.append) for _ in range(3)
    ]
    assert statuses == [REQUEUE, REQUEUE, 1]
    assert "no progress" in said[-1]


def test_three_killed_attempts_without_a_step_are_enough_too(
    submitted: Run, said: list[str]
) -> None:
    for _ in range(3):
        begun(submitted, said)
    with pytest.raises(DlbhpcError, match="no progress: 3 attempts in a row"):
        begun(submitted, said)
    # A job that the user submits anew may try again.
    begun(submitted, said, Job("8", 0))


def test_an_attempt_that_was_overtaken_completes_nothing(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    folder = begun(submitted, said)
    train_to(submitted, folder, submitted.total_steps, write_checkpoint)
    begin_attempt(submitted.launch.output.steps)
    assert end(folder, 0, Cause.NOTHING, said.append) == FENCED
    assert read_completed(submitted.launch.output) is None


def test_a_torn_newest_step_is_told_and_the_one_before_is_used(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    folder = begun(submitted, said)
    train_to(submitted, folder, 2, write_checkpoint)
    train_to(submitted, folder, 3, write_checkpoint)
    state = submitted.launch.output.steps / "step-00000003" / "training_state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    second = begun(submitted, said)
    assert json.loads((second / "attempt.json").read_text())["resumed_from"] == 2
    assert any("step-00000003" in line and "size differs" in line for line in said)


def test_steps_of_another_contract_are_not_resumed_from(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    folder = begun(submitted, said)
    number = json.loads((folder / "attempt.json").read_text())["attempt"]
    steps = submitted.launch.output.steps
    with open_publication(steps, step=3, attempt=number) as publication:
        with publication.create("training_state.pt") as file:
            file.write(write_checkpoint(folder / "state", {"global_step": 3}))
        publication.commit(contract={**submitted.contract, "seed": 1}, world=1)
    second = begun(submitted, said)
    assert json.loads((second / "attempt.json").read_text())["resumed_from"] is None


def test_an_upstream_that_does_not_compose_stops_the_run(
    submitted: Run, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        attempts, "compose_argv", lambda argv: [*argv, "no.such.key=1", "--cfg", "job"]
    )
    with pytest.raises(DlbhpcError, match=r"cannot compose its configuration(.|\n)*no\.such\.key"):
        begin(submitted.launch.output, JOB, said.append)


def test_another_composed_config_than_the_first_stops_the_run(
    submitted: Run, said: list[str]
) -> None:
    begun(submitted, said)
    composed = submitted.launch.output.composed_config
    composed.write_text(composed.read_text().replace("seed: 42", "seed: 43"))
    with pytest.raises(DlbhpcError, match="composes another configuration"):
        begin(submitted.launch.output, JOB, said.append)


def test_data_that_vanished_stop_the_run(submitted: Run, said: list[str]) -> None:
    submitted.launch.manifest.unlink()
    with pytest.raises(DlbhpcError, match="data prepare pydoc"):
        begin(submitted.launch.output, JOB, said.append)


def test_other_data_than_the_run_began_with_stop_it(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    """A requeued job comes here without a new submission, which would have compared."""
    train_to(submitted, begun(submitted, said), 2, write_checkpoint)
    manifest = submitted.launch.manifest
    manifest.write_text(manifest.read_text().replace("0" * 64, "2" * 64))
    with pytest.raises(DlbhpcError, match=r"began with other inputs \(data: \w+ then, \w+ now\)"):
        begin(submitted.launch.output, JOB, said.append)
    assert read_attempts(submitted.launch.output)[-1].reason == Reason.NOT_BEGUN.value


def test_the_next_link_of_a_chain_does_not_begin_with_another_teacher(
    run: Run, said: list[str], write_checkpoint: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "check_launch_teacher", lambda launch: None)
    teacher = run.launch.layout.root / "t.ckpt"
    teacher.write_bytes(b"one")
    recipe = replace(run.launch.recipe, teacher=Teacher("reference_mdlm", "masked_mdlm", None))
    student = prepare_run(replace(run.launch, recipe=recipe, teacher=teacher), "local", 300, 30)
    write_records(student)
    train_to(student, begun(student, said), 2, write_checkpoint)
    teacher.write_bytes(b"another")

    def too_early(*_: object, **__: object) -> None:
        raise AssertionError("written for a run that does not go on")

    then, now = (hashlib.sha256(content).hexdigest()[:20] for content in (b"one", b"another"))
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "ensure_data", too_early)
        patch.setattr(attempts, "ensure_adapted_teacher", too_early)
        with pytest.raises(DlbhpcError, match=rf"\(teacher: {then} then, {now} now\): put back"):
            begin(student.launch.output, Job("8", 0), said.append)
    assert read_attempts(student.launch.output)[-1].reason == Reason.NOT_BEGUN.value
    teacher.write_bytes(b"one")
    begun(student, said, Job("9", 0))
    assert said[-1] == f"attempt 3 goes on from step 2 of {student.total_steps}"


def test_other_code_of_the_bundled_upstream_stops_the_run(
    submitted: Run, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "bundled_commit", lambda: "bundled-other")
    with pytest.raises(DlbhpcError, match=r"other inputs \(source_commit: bundled-"):
        begin(submitted.launch.output, JOB, said.append)


def test_the_users_python_does_not_leak_in() -> None:
    base = {"PYTHONPATH": "/home/u/lib", "PYTHONSTARTUP": "x", "PATH": "/bin", "HF_HOME": "/home/u"}
    own = {"PYTHONPATH": "/upstream", "HF_HOME": "/root"}
    assert upstream_environment(base, own) == {
        "PATH": "/bin",
        "PYTHONPATH": "/upstream",
        "HF_HOME": "/root",
        "PYTHONNOUSERSITE": "1",
    }


def test_an_attempt_that_could_not_begin_is_recorded_with_its_reason(
    submitted: Run, said: list[str]
) -> None:
    submitted.launch.manifest.unlink()
    with pytest.raises(DlbhpcError):
        begin(submitted.launch.output, JOB, said.append)
    (attempt,) = read_attempts(submitted.launch.output)
    assert (attempt.number, attempt.reason, attempt.job_id) == (1, "could not begin", "7")


def test_the_numbers_go_on_when_the_steps_folder_was_lost(submitted: Run, said: list[str]) -> None:
    import shutil

    begun(submitted, said)
    shutil.rmtree(submitted.launch.output.steps)
    assert begun(submitted, said).name == "00002"


def test_a_torn_provenance_is_written_anew_and_another_identity_is_refused(
    submitted: Run, said: list[str]
) -> None:
    begun(submitted, said)
    provenance = submitted.launch.output.provenance
    whole = json.loads(provenance.read_text())
    provenance.write_text("{")
    begun(submitted, said)
    assert json.loads(provenance.read_text())["identity"] == whole["identity"]
    provenance.write_text(json.dumps({"identity": "0" * 64}))
    with pytest.raises(DlbhpcError, match="names another identity"):
        begin(submitted.launch.output, JOB, said.append)


def test_a_composed_config_that_is_no_yaml_is_a_sentence(submitted: Run, said: list[str]) -> None:
    begun(submitted, said)
    submitted.launch.output.composed_config.write_text("a: [")
    with pytest.raises(DlbhpcError, match="not valid YAML"):
        begin(submitted.launch.output, JOB, said.append)


def test_a_folder_in_the_place_of_the_checkpoint_is_a_sentence(
    submitted: Run, said: list[str], write_checkpoint: Write
) -> None:
    train_to(submitted, begun(submitted, said), 3, write_checkpoint)
    submitted.launch.output.last_checkpoint.mkdir(parents=True)
    with pytest.raises(DlbhpcError, match="is a folder"):
        begin(submitted.launch.output, JOB, said.append)


def test_a_job_that_the_scheduler_took_back_is_interrupted(submitted: Run, said: list[str]) -> None:
    folder = begun(submitted, said)
    assert end(folder, 0, Cause.TAKEN_BACK, said.append) == 1
    assert json.loads((folder / "end.json").read_text())["reason"] == "interrupted"


def test_an_attempt_that_dies_while_it_begins_went_behind_no_step(
    submitted: Run, said: list[str], write_checkpoint: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_to(submitted, begun(submitted, said), 3, write_checkpoint)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attempts, "verify_inputs", die)
    with pytest.raises(KeyboardInterrupt):
        begin(submitted.launch.output, JOB, said.append)
    assert [item.resumed_from for item in read_attempts(submitted.launch.output)] == [0, 3]


def test_an_attempt_that_could_not_say_why_it_ended_is_settled_by_the_next(
    submitted: Run, said: list[str]
) -> None:
    folder = begun(submitted, said)
    output = submitted.launch.output
    settle(output, lambda _: Reason.NODE_FAILURE, said.append)
    begun(submitted, said, Job("7", 1))
    assert [item.reason for item in read_attempts(output)] == ["node failure", None]
    # Its ghost wakes up, finds that it was overtaken, and leaves that word alone.
    assert end(folder, 143, Cause.UNKNOWN, said.append) == FENCED
    settle(output, lambda _: Reason.INTERRUPTED, said.append)
    assert [item.reason for item in read_attempts(output)] == ["node failure", "interrupted"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_failed_upstream_is_tried_again_as_often_as_the_user_said(
    submitted: Run, said: list[str], retries: int
) -> None:
    write_records(replace(submitted, retries=retries))
    statuses = [end(begun(submitted, said), 3, Cause.NOTHING, said.append) for _ in range(2)]
    assert statuses == ([REQUEUE, 3] if retries else [3, 3])
    assert {item.reason for item in read_attempts(submitted.launch.output)} == {"upstream failed"}


def test_the_jobs_of_one_submission_share_its_retries(submitted: Run, said: list[str]) -> None:
    write_records(replace(submitted, retries=1))
    jobs = [Job(job_id, 0, submission="token") for job_id in ("7", "8")]
    statuses = [end(begun(submitted, said, job), 3, Cause.NOTHING, said.append) for job in jobs]
    assert statuses == [REQUEUE, 3]


def test_a_job_that_could_not_requeue_itself_says_so(submitted: Run, said: list[str]) -> None:
    folder = begun(submitted, said)
    assert end(folder, REQUEUE, Cause.PREEMPTION, said.append) == REQUEUE
    want_requeue(folder, "scontrol is not installed here")
    (attempt,) = read_attempts(submitted.launch.output)
    assert (attempt.reason, attempt.requeue_wanted) == ("preempted", True)
    assert "scontrol is not installed" in json.loads((folder / "end.json").read_text())["advice"]


def test_nothing_of_an_earlier_allocation_is_taken_over(submitted: Run, said: list[str]) -> None:
    """A requeued job may get other nodes, and the old attempt's port may be taken there."""
    first = begun(submitted, said, Job("7", 0, "slurm", node_list="n[1-2]"))
    record = json.loads((first / "attempt.json").read_text())
    (first / "attempt.json").write_text(json.dumps(record | {"master_port": 1, "host": "n1"}))
    second = json.loads(
        (
            begun(submitted, said, Job("7", 1, "slurm", node_list="n[3-4]")) / "attempt.json"
        ).read_text()
    )
    assert (second["node_list"], second["restart_count"]) == ("n[3-4]", 1)
    assert second["master_port"] != 1 and second["host"] != "n1"
