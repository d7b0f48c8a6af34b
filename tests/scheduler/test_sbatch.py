"""The batch script: exact options, exact quoting, and what it does when it is signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.sbatch import job_name, render, sbatch_options

LOCAL = Profile(name="local", scheduler="local", grace_seconds=30, save_every_minutes=5)
SITE = Profile(
    name="site",
    scheduler="slurm",
    grace_seconds=120,
    save_every_minutes=15,
    time="2-00:00:00",
    cpus_per_task=8,
    gpu_type="h100",
    partition="gpu",
    account="my account",
    constraint="a&b",
    memory="0",
    sbatch_lines=("--exclude=n13",),
)


def options_of(script: str) -> list[str]:
    prefix = "#SBATCH "
    return [line.removeprefix(prefix) for line in script.splitlines() if line.startswith(prefix)]


@pytest.fixture
def two_nodes(root: Path) -> Launch:
    return plan_launch(Request(recipe="mdlm", root=root, nodes=2, gpus_per_node=4))


def test_every_option_of_a_two_node_run(two_nodes: Launch) -> None:
    assert sbatch_options(two_nodes, SITE) == [
        "--job-name=dlbhpc-mdlm-lm1b",
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--gpus-per-node=h100:4",
        "--cpus-per-task=8",
        "--time=2-00:00:00",
        "--mem=0",
        "--partition=gpu",
        '--account="my account"',
        '--constraint="a&b"',
        f"--output={two_nodes.output.job}/%j_0_log.out",
        "--open-mode=append",
        "--signal=B:USR2@120",
        "--requeue",
        "--exclude=n13",
    ]


def test_gpus_are_never_bound_to_tasks(two_nodes: Launch) -> None:
    script = render(two_nodes, SITE)
    assert "gpus-per-task" not in script
    assert "gpu-bind" not in script


def test_rdlm_starts_its_own_processes_in_one_task(root: Path) -> None:
    launch = plan_launch(Request(recipe="rdlm", root=root))
    options = sbatch_options(launch, SITE)
    assert "--ntasks=1" in options
    assert "--ntasks-per-node=1" in options
    assert "--gpus-per-node=h100:8" in options
    assert "--cpus-per-task=64" in options


def test_every_option_precedes_the_first_command(two_nodes: Launch) -> None:
    lines = render(two_nodes, SITE).splitlines()
    last_option = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH "))
    assert all(line.startswith("#") for line in lines[:last_option])


def test_srun_gets_the_tasks_and_the_cpus_that_slurm_no_longer_hands_on(two_nodes: Launch) -> None:
    script = render(two_nodes, SITE)
    assert "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --kill-on-bad-exit=1" in script
    assert "export SRUN_CPUS_PER_TASK=" in script
    assert "scontrol" not in script


@pytest.mark.parametrize("profile", [LOCAL, SITE], ids=lambda profile: profile.name)
def test_the_script_is_valid_bash(two_nodes: Launch, profile: Profile, tmp_path: Path) -> None:
    script = tmp_path / "batch.sh"
    script.write_text(render(two_nodes, profile))
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


def test_a_trial_says_so_in_its_name(root: Path) -> None:
    launch = plan_launch(Request(recipe="reference_mdlm", root=root, trial={}))
    assert job_name(launch) == "dlbhpc-reference_mdlm-pydoc-trial"


@pytest.mark.parametrize("character", ["%j", '"', "\\"])
def test_a_log_path_that_sbatch_would_misread_is_refused(launch: Launch, character: str) -> None:
    output = OutputLayout(launch.output.folder / f"a{character}b")
    with pytest.raises(DlbhpcError, match="sbatch cannot take"):
        render(replace(launch, output=output), SITE)


# What the script does, run under bash with a stand-in for this package's own `attempt` command.

STAND_IN = """#!/bin/bash
# Called as: python -m dlbhpc attempt ACTION ...
shift 3
echo "$*" >>"$CALLS"
case "$1" in
    begin) [ -z "$BEGIN_STATUS" ] || exit "$BEGIN_STATUS"; printf '%s' "$ATTEMPT" ;;
    spawn) eval "$SPAWN" ;;
    end) exit "${END_STATUS:-0}" ;;
esac
"""


class Bash:
    """The rendered script with a stand-in interpreter; what was called is in `calls`."""

    def __init__(self, launch: Launch, folder: Path) -> None:
        self.python = folder / "it's python"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)
        self.attempt = folder / "attempt $HOME"
        self.attempt.mkdir()
        self.script = folder / "batch.sh"
        self.script.write_text(render(launch, LOCAL, python=str(self.python)))
        self.calls_file = folder / "calls"
        self.calls_file.touch()

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "CALLS": str(self.calls_file),
            "ATTEMPT": str(self.attempt),
            **variables,
        }
        return subprocess.Popen(["bash", str(self.script)], env=environment)

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()

    def wait_for_call(self, action: str) -> None:
        deadline = time.monotonic() + 30
        while not any(call.startswith(action) for call in self.calls):
            assert time.monotonic() < deadline, f"{action} was not called"
            time.sleep(0.01)


@pytest.fixture
def bash(root: Path, tmp_path: Path) -> Bash:
    folder = tmp_path / "a folder; it's $HOME"
    folder.mkdir()
    launch = plan_launch(
        Request(recipe="reference_mdlm", root=root, output=root / "checkpoints" / "it's a `run`")
    )
    return Bash(launch, folder)


def test_begin_tasks_and_end_are_called_with_exact_paths(bash: Bash) -> None:
    assert bash.start(SPAWN="exit 7", END_STATUS="5").wait(30) == 5
    begin, spawn, end = bash.calls
    assert begin.startswith("begin ")
    assert begin.endswith("/checkpoints/it's a `run`")
    assert spawn == f"spawn {bash.attempt} --ntasks 1"
    assert end == f"end {bash.attempt} --status 7"


def test_nothing_starts_when_begin_says_that_the_run_is_complete(bash: Bash) -> None:
    assert bash.start(ATTEMPT="").wait(30) == 0
    assert [call.split()[0] for call in bash.calls] == ["begin"]


def test_nothing_starts_when_begin_fails(bash: Bash) -> None:
    assert bash.start(BEGIN_STATUS="2").wait(30) == 2
    assert [call.split()[0] for call in bash.calls] == ["begin"]


@pytest.mark.parametrize("signum", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_leaves_a_stop_file_and_the_real_status_is_kept(
    bash: Bash, signum: signal.Signals
) -> None:
    spawn = 'while [ ! -e "$ATTEMPT/stop" ]; do sleep 0.02; done; sleep 0.2; exit 75'
    batch = bash.start(SPAWN=spawn, END_STATUS="75")
    bash.wait_for_call("spawn")
    batch.send_signal(signum)
    assert batch.wait(30) == 75
    assert bash.calls[-1].endswith("--status 75")


def test_signals_again_and_again_change_nothing(bash: Bash) -> None:
    batch = bash.start(SPAWN="sleep 1; exit 75", END_STATUS="75")
    bash.wait_for_call("spawn")
    while not any(call.startswith("end") for call in bash.calls) and batch.poll() is None:
        batch.send_signal(signal.SIGUSR2)
        time.sleep(0.01)
    assert batch.wait(30) == 75
    assert bash.calls[-1].endswith("--status 75")


def test_a_signal_during_begin_is_handed_to_the_attempt(bash: Bash) -> None:
    text = bash.python.read_text().replace("begin)", 'begin) kill -USR2 "$PPID"; sleep 0.1;')
    bash.python.write_text(text)
    assert bash.start(SPAWN='test -e "$ATTEMPT/stop"').wait(30) == 0
    assert bash.calls[-1].endswith("--status 0")
