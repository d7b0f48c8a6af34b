"""The batch script: exact options, exact quoting, and what it does when it is signalled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.profile_checks import check_values
from dlbhpc.scheduler.sbatch import job_name, notes, render, sbatch_options

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
    site = replace(SITE, modules=("x",), prologue=("#SBATCH --nodes=9", "set -e"), scratch="/tmp")
    lines = render(two_nodes, site, "token", array="1-3").splitlines()
    options = sbatch_options(two_nodes, site, "token", array="1-3")
    assert lines[0] == "#!/bin/bash"
    assert lines[1 : 1 + len(options)] == [f"#SBATCH {option}" for option in options]
    # sbatch reads no option behind the first command.
    command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert command < lines.index("#SBATCH --nodes=9")
    assert command < next(i for i, line in enumerate(lines) if line.startswith("module load"))


def test_an_array_names_its_logs_as_submitit_looks_for_them(two_nodes: Launch) -> None:
    options = sbatch_options(two_nodes, SITE, array="1-8%2")
    assert "--array=1-8%2" in options
    assert f"--output={two_nodes.output.job}/%A_%a_0_log.out" in options


@pytest.mark.parametrize(
    ("option", "memory", "expected", "noted"),
    [
        ("mem", "65G", "--mem=65G", False),
        ("mem-per-cpu", "64G", "--mem-per-cpu=4G", False),
        ("mem-per-cpu", "65G", "--mem-per-cpu=5G", True),
        ("mem-per-cpu", "66560M", "--mem-per-cpu=4160M", False),
        ("mem-per-gpu", "64G", "--mem-per-gpu=8G", False),
        ("mem-per-gpu", "100", "--mem-per-gpu=13M", True),
    ],
)
def test_the_memory_of_a_node_in_the_form_that_the_site_takes(
    root: Path, option: str, memory: str, expected: str, noted: bool
) -> None:
    launch = plan_launch(Request(recipe="mdlm", root=root, nodes=1, gpus_per_node=8))
    site = replace(SITE, cpus_per_task=2, memory=memory, memory_option=option)
    script = render(launch, site)
    assert expected in options_of(script)
    assert sum("--mem" in line for line in options_of(script)) == 1
    assert ("is rounded up to" in script) is noted


def test_what_was_rounded_up_is_said_with_the_sum(root: Path) -> None:
    launch = plan_launch(Request(recipe="mdlm", root=root, nodes=1, gpus_per_node=8))
    site = replace(SITE, cpus_per_task=2, memory="65G", memory_option="mem-per-cpu")
    assert notes(launch, site) == [
        "65G of memory over 16 CPUs of a node is rounded up to 5G each, 80G in all; "
        "a smaller unit divides more finely"
    ]


def test_gpus_as_a_generic_resource_where_the_site_takes_nothing_else(two_nodes: Launch) -> None:
    options = sbatch_options(two_nodes, replace(SITE, gpu_option="gres"))
    assert "--gres=gpu:h100:4" in options
    assert not any(option.startswith("--gpus") for option in options)


def read_as_sbatch_does(option: str) -> str:
    """One word of an option line, after _get_argument in Slurm's sbatch.c (22.05)."""
    word, quote, escaped = "", "", False
    for character in option:
        if escaped:
            word, escaped = word + character, False
        elif character == "\\":
            escaped = True
        elif quote and character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and (character.isspace() or character == "#"):
            raise AssertionError(f"{option!r} ends at {character!r}")
        else:
            word += character
    assert not quote, f"{option!r} does not end its quote"
    return word


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(min_size=1))
@example(text="a b'c$(touch x)`y`;&|#%j(é)*?~")
def test_a_value_is_carried_exactly_or_refused(two_nodes: Launch, text: str) -> None:
    keys = ("partition", "account", "qos", "constraint")
    values = {**dict.fromkeys(keys, text), "sbatch_lines": (f"--exclude={text}",)}
    try:
        check_values(values, lambda key: key)
    except DlbhpcError:
        return
    site = replace(SITE, **values)
    options = sbatch_options(two_nodes, site)
    words = [read_as_sbatch_does(option) for option in options]
    assert set(words) >= {f"--{key}={text}" for key in (*keys, "exclude")}
    assert not any("\n" in option for option in options)


def test_what_would_be_refused_is_not_the_ordinary() -> None:
    check_values({"account": "a b'c$(touch x)`y`;&|#%j(é)*?~"}, lambda key: key)


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


@pytest.mark.parametrize(
    "name", ["duo base", 'a"b', "a\nb", "a%j", "a(b)", "a$(touch x)", "x" * 300]
)
def test_a_job_name_holds_nothing_that_slurm_could_misread(launch: Launch, name: str) -> None:
    odd = replace(launch, recipe=replace(launch.recipe, name=name))
    assert re.fullmatch(r"dlbhpc-[A-Za-z0-9._-]{1,93}", job_name(odd))
    assert sbatch_options(odd, SITE)[0] == f"--job-name={job_name(odd)}"


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
    spawn|task) eval "$SPAWN" ;;
    end) test -d "${DLBHPC_SCRATCH:-/}" || exit 9; exit "${END_STATUS:-0}" ;;
esac
"""


class Bash:
    """The rendered script with a stand-in interpreter; what was called is in `calls`."""

    def __init__(self, launch: Launch, folder: Path, profile: Profile = LOCAL) -> None:
        self.python = folder / "it's python"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)
        self.attempt = folder / "attempt $HOME"
        self.attempt.mkdir()
        self.script = folder / "batch.sh"
        self.script.write_text(render(launch, profile, python=str(self.python)))
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


# What a profile adds to the script.

NASTY = 'it\'s "$HOME" $(touch {canary}) `touch {canary}`\n#SBATCH --nodes=9\n\\ %j ; & é'


@pytest.fixture
def with_profile(launch: Launch, tmp_path: Path) -> Callable[[Profile], Bash]:
    """Makes the script of a profile; `module` and `srun` are what a test puts on its PATH."""

    def make(profile: Profile) -> Bash:
        folder = tmp_path / "script"
        folder.mkdir()
        return Bash(launch, folder, profile)

    return make


def test_environment_values_reach_the_tasks_byte_for_byte(
    with_profile: Callable[[Profile], Bash], tmp_path: Path
) -> None:
    nasty = NASTY.format(canary=tmp_path / "canary")
    bash = with_profile(replace(LOCAL, environment={"NASTY": nasty, "http_proxy": "a b"}))
    spawn = 'printf "%s|%s" "$NASTY" "$http_proxy" >"$ATTEMPT/seen"'
    assert bash.start(SPAWN=spawn).wait(30) == 0
    assert (bash.attempt / "seen").read_text() == f"{nasty}|a b"
    assert not (tmp_path / "canary").exists()


def test_the_network_interface_is_told_to_both_libraries_and_the_environment_goes_over_it(
    with_profile: Callable[[Profile], Bash],
) -> None:
    site = replace(LOCAL, network_interface="ib0", environment={"GLOO_SOCKET_IFNAME": "eth1"})
    bash = with_profile(site)
    spawn = 'echo "$NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME" >"$ATTEMPT/seen"'
    assert bash.start(SPAWN=spawn).wait(30) == 0
    assert (bash.attempt / "seen").read_text() == "ib0 eth1\n"


def test_a_prologue_that_sets_the_shell_to_end_on_errors_does_not_keep_the_end_from_running(
    with_profile: Callable[[Profile], Bash],
) -> None:
    bash = with_profile(replace(LOCAL, prologue=("set -euo pipefail", "export SEEN=yes")))
    assert bash.start(SPAWN='test "$SEEN" = yes && exit 7', END_STATUS="5").wait(30) == 5
    assert bash.calls[-1].endswith("--status 7")


def test_modules_are_loaded_in_order_before_anything_starts(
    with_profile: Callable[[Profile], Bash], tmp_path: Path
) -> None:
    bash = with_profile(replace(LOCAL, modules=("gcc/12", "cuda/12.1")))
    module = tmp_path / "bin" / "module"
    module.parent.mkdir()
    module.write_text('#!/bin/bash\necho "module $*" >>"$CALLS"\n')
    module.chmod(0o755)
    path = f"{module.parent}:{os.environ['PATH']}"
    assert bash.start(PATH=path, SPAWN="exit 0").wait(30) == 0
    assert bash.calls[0] == "module load gcc/12 cuda/12.1"
    assert bash.calls[1].startswith("begin ")


def test_modules_that_do_not_load_start_nothing(
    with_profile: Callable[[Profile], Bash],
) -> None:
    bash = with_profile(replace(LOCAL, modules=("no-such-command-here",)))
    assert bash.start(SPAWN="exit 0").wait(30) == 2
    assert bash.calls == []


def test_the_scratch_folder_is_one_for_each_attempt_and_removed_behind_its_end(
    with_profile: Callable[[Profile], Bash], tmp_path: Path
) -> None:
    place = tmp_path / "fast disk; $(x)"
    place.mkdir()
    bash = with_profile(replace(LOCAL, scratch=str(place)))
    spawn = 'echo "$DLBHPC_SCRATCH" >"$ATTEMPT/seen"; mkdir "$DLBHPC_SCRATCH"; exit 75'
    environment = {"SLURM_JOB_ID": "77", "DLBHPC_LOCAL_JOB": "5"}
    assert bash.start(SPAWN=spawn, END_STATUS="75", **environment).wait(30) == 75
    folder = place / f"dlbhpc-77-{bash.attempt.name}"
    assert (bash.attempt / "seen").read_text() == f"{folder}\n"
    assert not folder.exists()
