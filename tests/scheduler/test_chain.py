"""Jobs of one run that wait for each other, with stand-ins for Slurm's commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.lease import LeaseHeld, acquire, read_lease
from dlbhpc.run.record import Run
from dlbhpc.scheduler import start
from dlbhpc.scheduler.arrays import submit_array
from dlbhpc.scheduler.chain import end_links, take_turns, unfinished_jobs, wait_behind
from dlbhpc.scheduler.ledger import Ledger, read_ledger, write_ledger
from dlbhpc.scheduler.own_job import own_lease
from dlbhpc.scheduler.processes import ProcessId
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.submission import Jobs
from dlbhpc.scheduler.submit import new_lease, submit

SLURM = Profile(name="site", scheduler="slurm", grace_seconds=60, save_every_minutes=5)
GONE = ProcessId(1, "another boot/1")


class Slurm:
    """Stand-ins for Slurm's commands: a queue in a file, and the commands that were called."""

    def __init__(self, folder: Path) -> None:
        self.queue, self.calls = folder / "queue", folder / "calls"
        self.queue.touch()
        self.calls.touch()
        tag = '$(sed -n "s/^#SBATCH --comment=//p" "${@: -1}")'
        self.scripts = {
            "squeue": f"cat {self.queue}",
            "srun": "true",
            "scontrol": "true",
            "scancel": 'sed -i "/^$1|/d" ' + str(self.queue),
            "sbatch": (
                f"id=$((41 + $(wc -l <{self.queue})))\n"
                f'echo "$id|PENDING|None|dlbhpc-job|{tag}" >>{self.queue}\n'
                '[[ "$*" == *--parsable* ]] && echo $id || echo Submitted batch job $id'
            ),
        }
        for name, script in self.scripts.items():
            self.stub(folder, name, script)

    def stub(self, folder: Path, name: str, script: str) -> None:
        path = folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>{self.calls}\n{script}\n')
        path.chmod(0o755)

    def add(self, job_id: str, token: str, state: str = "PENDING") -> None:
        with self.queue.open("a") as file:
            file.write(f"{job_id}|{state}|None|dlbhpc-job|dlbhpc:{token}\n")

    def called(self, name: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith(name)]

    def jobs(self) -> list[str]:
        return [line.partition("|")[0] for line in self.queue.read_text().splitlines()]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(start, "LOOKUP_SECONDS", 0.0)
    return Slurm(folder)


def test_each_link_waits_for_the_one_before_under_the_same_tag(run: Run, slurm: Slurm) -> None:
    submitted = submit(run, SLURM, links=2)
    assert (submitted.job_id, submitted.links) == ("41", ("42", "43"))
    dependencies = [line.split()[1] for line in slurm.called("sbatch")]
    assert dependencies[1:] == ["--dependency=afterany:41", "--dependency=afterany:42"]
    tags = {line.rpartition("|")[2] for line in slurm.queue.read_text().splitlines()}
    lease = read_lease(run.launch.output.lease)
    assert lease is not None
    assert tags == {f"dlbhpc:{lease.token}"}
    ledger = read_ledger(run.launch.output, lease.token)
    assert ledger is not None
    assert ledger.jobs == ("41", "42", "43")


def test_a_run_waits_for_every_job_of_its_teacher(run: Run, slurm: Slurm) -> None:
    submit(run, SLURM, after=("7", "8"))
    assert "--dependency=afterany:7:8 " in slurm.called("sbatch")[0]


def test_a_link_that_slurm_refuses_leaves_what_was_submitted(
    run: Run, slurm: Slurm, tmp_path: Path
) -> None:
    limit = 'if [[ "$*" == *afterany* ]]; then echo QOSMaxSubmitJobPerUserLimit >&2; exit 1; fi\n'
    slurm.stub(tmp_path / "bin", "sbatch", limit + slurm.scripts["sbatch"])
    with pytest.raises(DlbhpcError, match=r"submitted as 41, with fewer links .*QOSMaxSubmit"):
        submit(run, SLURM, links=2)
    with pytest.raises(LeaseHeld, match="job 41"):
        submit(run, SLURM, links=2)
    assert slurm.jobs() == ["41"]


def test_chains_need_a_queue(run: Run) -> None:
    with pytest.raises(DlbhpcError, match="keeps no queue"):
        submit(run, replace(SLURM, scheduler="local"), links=1)
    assert not run.launch.output.lease.exists()


@pytest.fixture
def chain(run: Run, slurm: Slurm) -> OutputLayout:
    """A run with two links, whose first job runs."""
    submit(run, SLURM, links=2)
    return run.launch.output


def test_links_that_are_not_needed_are_cancelled_the_last_first(
    chain: OutputLayout, slurm: Slurm
) -> None:
    assert end_links(chain, "41") == ["42", "43"]
    assert slurm.called("scancel") == ["scancel 43", "scancel 42"]


def test_without_links_slurm_is_not_even_asked(run: Run, slurm: Slurm) -> None:
    submit(run, SLURM)
    asked = len(slurm.called("squeue"))
    assert end_links(run.launch.output, "41") == []
    assert len(slurm.called("squeue")) == asked


def test_a_link_goes_on_where_the_job_cannot_be_requeued(chain: OutputLayout, slurm: Slurm) -> None:
    assert "job 42" in take_turns(chain, "41")
    assert len(slurm.called("sbatch")) == 3


def test_without_a_link_the_script_is_submitted_once_more(run: Run, slurm: Slurm) -> None:
    submit(run, SLURM)
    assert "as 42" in take_turns(run.launch.output, "41")
    script = run.launch.output.batch_script
    # Behind the job itself: Slurm may requeue it after all, and a run has one live job.
    again = f"sbatch --parsable --dependency=afterany:41 {script}"
    assert slurm.called("sbatch")[-1] == again


def test_one_element_of_an_array_is_submitted_again_by_itself(run: Run, slurm: Slurm) -> None:
    """Not from the array's script: the next array in the folder has other runs in it."""
    output = run.launch.output
    submit_array({3: run}, SLURM)
    lease = read_lease(output.lease)
    assert lease is not None
    assert "as 42" in take_turns(output, "41_3")
    again = f"sbatch --parsable --dependency=afterany:41_3 {output.batch_script}"
    assert slurm.called("sbatch")[-1] == again
    script = output.batch_script.read_text()
    assert f"--comment=dlbhpc:{lease.token}\n" in script
    assert f"run={output.folder}\n" in script
    assert "--array" not in script


def test_a_student_waits_as_another_job_of_the_same_run(run: Run, slurm: Slurm) -> None:
    submit(run, SLURM)
    output = run.launch.output
    assert wait_behind(output, "41", ("90", "91")) == "42"
    assert "--dependency=afterany:90:91:41 " in slurm.called("sbatch")[-1]
    lease = read_lease(output.lease)
    assert lease is not None
    assert lease.job_id == "42"


def test_a_link_waits_in_the_place_of_its_student(chain: OutputLayout, slurm: Slurm) -> None:
    """Were another job made, it and the link would run at the same time."""
    assert wait_behind(chain, "41", ("90",)) == "42"
    assert slurm.called("scontrol") == ["scontrol update JobId=42 Dependency=afterany:90:41"]
    assert len(slurm.called("sbatch")) == 3


def test_the_jobs_of_an_unfinished_run_are_named_and_of_a_dead_one_none(
    chain: OutputLayout, slurm: Slurm
) -> None:
    assert unfinished_jobs(chain) == ("41", "42", "43")
    slurm.queue.write_text("")
    assert unfinished_jobs(chain) == ()


def abandon(output: OutputLayout, wanted: int, jobs: tuple[str, ...] = ()) -> str:
    """What a submission leaves that was killed before it wrote these jobs down."""
    output.job.mkdir(exist_ok=True)
    lease = new_lease(SLURM)
    acquire(output.lease, lease, lambda lease: False)
    ledger = Ledger.new(lease.token, wanted).with_jobs(*jobs)
    write_ledger(output, replace(ledger, submitter=GONE))
    output.batch_script.write_text(f"#!/bin/bash\n#SBATCH --comment=dlbhpc:{lease.token}\n")
    return lease.token


def test_a_submission_that_died_is_made_whole_by_the_next(run: Run, slurm: Slurm) -> None:
    slurm.add("41", abandon(run.launch.output, wanted=3))
    submitted = submit(run, SLURM, links=2)
    assert submitted.adopted
    assert (submitted.job_id, submitted.links) == ("41", ("42", "43"))
    with pytest.raises(LeaseHeld):
        submit(run, SLURM, links=2)
    assert slurm.jobs() == ["41", "42", "43"]
    assert not (run.launch.output.job / "submission.lock").exists()


def test_a_submission_in_progress_is_nobody_elses_business(run: Run, slurm: Slurm) -> None:
    output = run.launch.output
    token = abandon(output, wanted=3)
    write_ledger(output, Ledger.new(token, 3))
    slurm.add("41", token)
    with pytest.raises(LeaseHeld, match="still alive"):
        submit(run, SLURM, links=2)
    assert slurm.jobs() == ["41"]


def test_more_jobs_than_were_submitted_stop_it_and_are_all_named(run: Run, slurm: Slurm) -> None:
    token = abandon(run.launch.output, wanted=1)
    slurm.add("41", token)
    slurm.add("42", token, "RUNNING")
    with pytest.raises(DlbhpcError, match=r"42 \(running\), 41 \(pending\)"):
        submit(run, SLURM)
    with pytest.raises(DlbhpcError, match=r"submitted were 1: 42"):
        Jobs().live(run.launch.output)
    assert slurm.jobs() == ["41", "42"]


def test_a_job_whose_answer_was_lost_is_found_and_not_made_twice(
    run: Run, slurm: Slurm, tmp_path: Path
) -> None:
    slurm.stub(tmp_path / "bin", "sbatch", slurm.scripts["sbatch"] + " >/dev/null\nexit 1")
    assert submit(run, SLURM, links=1).links == ("42",)
    assert slurm.jobs() == ["41", "42"]


def test_the_link_that_runs_writes_its_own_name_into_the_lease(
    chain: OutputLayout, slurm: Slurm
) -> None:
    lease = read_lease(chain.lease)
    assert lease is not None
    own_lease(chain, {"SLURM_JOB_ID": "42", "DLBHPC_LEASE_TOKEN": lease.token})
    held = read_lease(chain.lease)
    assert held is not None
    assert (held.job_id, held.token) == ("42", lease.token)
