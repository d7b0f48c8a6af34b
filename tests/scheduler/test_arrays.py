"""Seeds as a user writes them, and the array that they become."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.lease import LeaseHeld, acquire, read_lease
from dlbhpc.run.record import Run
from dlbhpc.scheduler import start, submission
from dlbhpc.scheduler.arrays import array_option, array_script, parse_seeds, submit_array
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import QueuedJob
from dlbhpc.scheduler.submission import Jobs, log_path
from dlbhpc.scheduler.submit import new_lease

SLURM = Profile(name="site", scheduler="slurm", grace_seconds=60, save_every_minutes=5)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1-8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("1,3,5", (1, 3, 5)),
        ("7, 1-3", (7, 1, 2, 3)),
        ("0", (0,)),
        ("5-5", (5,)),
    ],
)
def test_seeds_are_read_in_the_order_written(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write it as"),
        ("1-", "write it as"),
        ("-3", "write it as"),
        ("1;2", "write it as"),
        ("1.5", "write it as"),
        ("²", "write it as"),
        ("1,,2", "write it as"),
        ("3-1", "must go upwards"),
        ("1-999999999", "fewer than"),
        ("1,2,1", "names 1 twice"),
        ("1-3,2-4", "names 2, 3 twice"),
    ],
)
def test_what_is_no_list_of_seeds_is_refused(text: str, message: str) -> None:
    with pytest.raises(DlbhpcError, match=message):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("numbers", "parallelism", "option"),
    [
        ([1, 2, 3, 4], None, "1-4"),
        ([1, 3, 4, 5, 9], 2, "1,3-5,9%2"),
        ([2, 1], 1, "1-2%1"),
        ([7], None, "7"),
    ],
)
def test_the_arrays_option_folds_its_numbers(
    numbers: list[int], parallelism: int | None, option: str
) -> None:
    assert array_option(numbers, parallelism) == option


@given(st.sets(st.integers(1, 200), min_size=1))
def test_a_folded_option_names_exactly_its_numbers(numbers: set[int]) -> None:
    assert parse_seeds(array_option(sorted(numbers), None)) == tuple(sorted(numbers))


@pytest.fixture
def launches(root: Path) -> dict[int, Launch]:
    """Two seeds whose folders hold what a shell might misread."""
    folder = root / "checkpoints" / "it's $(touch made) seeds"
    return {
        number: plan_launch(
            Request("reference_mdlm", root=root, seed=seed, output=folder / f"seed-{seed}")
        )
        for number, seed in ((1, 11), (3, 13))
    }


@pytest.fixture
def runs(launches: dict[int, Launch]) -> dict[int, Run]:
    return {
        number: prepare_run(launch, "site", save_every_seconds=300, grace_seconds=60)
        for number, launch in launches.items()
    }


def test_each_element_picks_its_own_run_and_lease(
    launches: dict[int, Launch], tmp_path: Path
) -> None:
    script = array_script(launches, SLURM, parallelism=4, token="abc")
    assert "#SBATCH --array=1,3%4\n" in script
    assert "%A_%a_0_log.out" in script
    picked = script.partition("attempt=$(dlbhpc begin")[0]
    shell = picked + '\nprintf "%s\\n" "$run" "$DLBHPC_LEASE_TOKEN"\n'
    for number, launch in launches.items():
        done = subprocess.run(
            ["bash", "-c", shell],
            env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(number)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.stdout.splitlines() == [str(launch.output.folder), f"abc_{number}"]
    other = subprocess.run(
        ["bash", "-c", shell],
        env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"},
        capture_output=True,
        text=True,
    )
    assert (other.returncode, other.stdout) == (2, "")
    assert "no run of the number '2'" in other.stderr
    assert not (tmp_path / "made").exists()


def test_an_element_is_found_by_the_arrays_tag_and_its_own_number(
    runs: dict[int, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = {
        job_id: QueuedJob(job_id, "RUNNING", "None", "dlbhpc-duo-owt", "dlbhpc:abc")
        for job_id in ("700_1", "700_3")
    }
    monkeypatch.setattr(submission, "read_queue", lambda: queue)
    output = runs[3].launch.output
    output.folder.mkdir(parents=True)
    acquire(output.lease, new_lease(SLURM, "abc_3"), lambda lease: False)
    live = Jobs().live(output)
    assert live is not None
    assert live.job_id == "700_3"
    assert read_lease(output.lease) == live, "what its submission could not write down is adopted"


def test_the_log_of_an_element_lies_where_its_array_keeps_them(runs: dict[int, Run]) -> None:
    output = runs[3].launch.output
    assert log_path(output, "700_3") == output.folder.parent / "job" / "700_3_0_log.out"
    assert log_path(output, "41") == output.job / "41_0_log.out"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands, as stand-ins: the queue is empty, sbatch makes array 700."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (
        ("sbatch", "echo Submitted batch job 700"),
        ("squeue", "true"),
        ("srun", "true"),
    ):
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(start, "LOOKUP_SECONDS", 0.0)
    return folder


def test_one_submission_makes_every_element(runs: dict[int, Run], slurm: Path) -> None:
    import submitit

    submitted = submit_array(runs, SLURM)
    assert submitted.jobs == {1: "700_1", 3: "700_3"}
    for number, run in runs.items():
        lease = read_lease(run.launch.output.lease)
        assert lease is not None
        assert lease.job_id == f"700_{number}"
    shared = OutputLayout(runs[1].launch.output.folder.parent)
    handle: submitit.SlurmJob[object] = submitit.SlurmJob(shared.job, "700_3")
    assert handle.submission().function.output == runs[3].launch.output


def test_a_live_element_is_refused_by_its_seed_and_nothing_is_taken(
    runs: dict[int, Run], slurm: Path
) -> None:
    output = runs[3].launch.output
    output.folder.mkdir(parents=True)
    acquire(output.lease, new_lease(SLURM), lambda lease: False)
    with pytest.raises(DlbhpcError, match=r"13 \(slurm .*others with --seeds 11$"):
        submit_array(runs, SLURM)
    assert not runs[1].launch.output.folder.exists()


def test_a_refused_array_gives_every_run_back(runs: dict[int, Run], slurm: Path) -> None:
    (slurm / "sbatch").write_text("#!/bin/bash\necho 'Invalid job array specification' >&2; exit 1")
    with pytest.raises(DlbhpcError, match="Invalid job array specification"):
        submit_array(runs, SLURM)
    for run in runs.values():
        assert not run.launch.output.lease.exists()
        assert not run.launch.output.run.exists()


def test_an_array_that_was_made_although_sbatch_failed_is_adopted(
    runs: dict[int, Run], slurm: Path
) -> None:
    queue = slurm / "queue"
    (slurm / "squeue").write_text(f"#!/bin/bash\ncat {queue} 2>/dev/null || true")
    (slurm / "sbatch").write_text(
        '#!/bin/bash\ntag=$(sed -n "s/^#SBATCH --comment=//p" "${@: -1}")\n'
        f'for n in 1 3; do echo "700_$n|PENDING|None|dlbhpc-job|$tag"; done >{queue}; exit 1'
    )
    assert submit_array(runs, SLURM).jobs == {1: "700_1", 3: "700_3"}


def test_a_race_for_one_element_gives_the_others_back(
    runs: dict[int, Run], slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlbhpc.scheduler import arrays

    real = arrays.acquire

    def lose_the_second(path: Path, *rest: object) -> object:
        if path == runs[3].launch.output.lease:
            raise LeaseHeld("somebody was faster")
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(arrays, "acquire", lose_the_second)
    with pytest.raises(LeaseHeld, match="faster"):
        submit_array(runs, SLURM)
    assert not runs[1].launch.output.lease.exists()


def test_arrays_need_slurm(runs: dict[int, Run]) -> None:
    with pytest.raises(DlbhpcError, match="keeps no queue"):
        submit_array(runs, replace(SLURM, scheduler="local"))
    assert not runs[1].launch.output.folder.exists()
