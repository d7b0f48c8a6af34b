"""Cluster profiles: read strictly, every value checked, flags over what the file says."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import CHECKOUT, PROFILES
from dlbhpc.scheduler import profile as profiles
from dlbhpc.scheduler.profile import Profile, default_profile_name, load_profile
from dlbhpc.scheduler.profile_checks import CHECKS

GOOD = "scheduler: slurm\ngrace_seconds: 60\nsave_every_minutes: 5\n"
EXAMPLES = sorted((PROFILES / "examples").glob("*.yaml"))


def write(root: Path, text: str, name: str = "site") -> Path:
    path = root / "slurm" / "profiles" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(root: Path, text: str, **flags: Any) -> Profile:
    write(root, text)
    return load_profile("site", root, flags)


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_profile_loads(path: Path) -> None:
    assert load_profile(path.stem).name == path.stem


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads_where_users_write_theirs(path: Path, tmp_path: Path) -> None:
    profile = load(tmp_path, path.read_text())
    assert profile.scheduler == "slurm", "it builds on the shipped one"
    assert all(line.startswith("#") for line in path.read_text().splitlines()[:1])


def test_every_key_is_documented_and_every_value_checked() -> None:
    text = (CHECKOUT / "docs" / "profiles.md").read_text()
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = {key for cell in table for key in re.findall(r"`(\w+)`", cell)}
    assert documented == {field.name for field in fields(Profile)} - {"name"} == set(CHECKS)


def test_values_that_yaml_reads_as_numbers_reach_sbatch_as_written(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        GOOD + "time: 12:00:00\nmemory: 0\naccount: 0017\nqos: on\nsbatch_lines: [--x=1]\n"
        "modules: [1.10, no]\nenvironment: {A: 0017, no: yes, C: 12:00}\n",
    )
    assert (profile.time, profile.memory) == ("12:00:00", "0")
    assert (profile.account, profile.qos) == ("0017", "on")
    assert profile.sbatch_lines == ("--x=1",)
    assert profile.modules == ("1.10", "no")
    assert profile.environment == {"A": "0017", "no": "yes", "C": "12:00"}


def test_null_leaves_a_value_to_the_site(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "partition: null\nmemory: ~\naccount:\n").account is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "partitions: gpu\n", "unknown key 'partitions'"),
        ("scheduler: slurm\ngrace_seconds: 60\n", "missing key 'save_every_minutes'"),
        (GOOD.replace("slurm", "pbs"), "scheduler is 'pbs', it must be local or slurm"),
        (GOOD.replace("60", "0"), "grace_seconds is 0"),
        (GOOD.replace("60", "-5"), "grace_seconds is -5"),
        (GOOD.replace("60", "59"), "grace_seconds is 59: at least 60"),
        (GOOD.replace("60", "70000"), "grace_seconds is 70000: it must be at most 65535"),
        (GOOD.replace("60", "soon"), "grace_seconds is 'soon'"),
        (GOOD + "gpus_per_node: true\n", "gpus_per_node is True"),
        (GOOD + "max_nodes: 0\n", "max_nodes is 0"),
        (GOOD + "num_workers: -1\n", "num_workers is -1"),
        (GOOD + "save_every_minutes: 0\n", "save_every_minutes is 0"),
        (GOOD + "min_save_every_minutes: 6\n", "save_every_minutes is below min_save_every_mi"),
        (GOOD + "max_save_every_minutes: 4\n", "save_every_minutes is above max_save_every_mi"),
        (GOOD + "time: a day\n", "time is wrong: 'a day' is no time"),
        (GOOD + "time: 1\n", "time is 1: a limit of 00:01:00 leaves no time before the warning"),
        (GOOD + "time: 0:59\n", "time is 0:59: a limit of 00:01:00"),
        (GOOD + "memory: 64 GB\n", "memory is wrong: '64 GB' is no amount of memory"),
        (GOOD + "memory: 64G\nmemory_option: mem-per-cpu\n", "which needs cpus_per_task"),
        (GOOD + "memory: 0\nmemory_option: mem-per-gpu\n", "memory is 0 (all of a node's)"),
        (GOOD + "memory_option: mem-per-node\n", "memory_option is 'mem-per-node', it must be mem"),
        (GOOD + "gpu_option: gpus\n", "gpu_option is 'gpus', it must be gpus-per-node or gres"),
        (GOOD + "gpu_type: a100:2\n", "gpu_type is 'a100:2', which is not a type of GPU"),
        (GOOD + 'partition: "a\\nb"\n', "control character"),
        (GOOD + 'partition: "a\\u2028b"\n', "control character"),
        (GOOD + 'qos: ""\n', "qos is empty: leave it out"),
        (GOOD + f"constraint: {'x' * 1001}\n", "constraint is longer than 1000 characters"),
        (GOOD + "account: 'a\"b'\n", "holds a quote"),
        (GOOD + "account: 'a\\b'\n", "holds a quote or a backslash"),
        (GOOD + "sbatch_lines: --exclude=n1\n", "sbatch_lines is '--exclude=n1'"),
        (GOOD + "sbatch_lines: [rm -rf x]\n", "must be one long option"),
        (GOOD + "sbatch_lines: [--exclude n1]\n", "must be one long option"),
        (GOOD + "sbatch_lines: [-N4]\n", "must be one long option"),
        (GOOD + "sbatch_lines: [--nodes=4]\n", "must not set --nodes: the run decides it"),
        (GOOD + "sbatch_lines: [--no-req]\n", "must not set --no-requeue: the run decides it"),
        (GOOD + "sbatch_lines: [--comm=x]\n", "must not set --comment: the run decides it"),
        (GOOD + "sbatch_lines: [--time=5]\n", "must not set --time: use the key time"),
        (GOOD + "sbatch_lines: ['--exclude=\"n1\"']\n", "holds a quote"),
        (GOOD + "modules: [cuda; rm x]\n", "modules is 'cuda; rm x', which is not the name of"),
        (GOOD + "modules: [--force]\n", "which is not the name of a module"),
        (GOOD + 'prologue: ["a\\nb"]\n', "prologue is 'a\\nb', which holds a control character"),
        (GOOD + "environment: {A B: c}\n", "environment names the variable 'A B'"),
        (GOOD + "environment: {'A=$(x)': c}\n", "names the variable 'A=$(x)'"),
        (GOOD + "environment: {SLURM_NTASKS: 3}\n", "environment must not set SLURM_NTASKS"),
        (GOOD + "environment: {attempt: x}\n", "environment must not set attempt"),
        (GOOD + "environment: {PYTHONPATH: x}\n", "environment must not set PYTHONPATH"),
        (GOOD + 'environment: {A: "b\\0"}\n', "which no environment can hold"),
        (GOOD + "environment: [A]\n", "environment is ['A'], which is not a mapping"),
        (GOOD + "scratch: tmp\n", "scratch is 'tmp', which is no absolute path"),
        (GOOD + "scratch: /tmp/../etc\n", "which is no absolute path"),
        (GOOD + "scratch: /local/$USER\n", "nothing in it would be replaced"),
        (GOOD + "network_interface: ib0;x\n", "which is not a network interface"),
        (GOOD + "container: docker\n", "it must be none or apptainer or singularity"),
        (GOOD + "container_mount: loop\n", "it must be kernel or fuse or unpacked"),
        (GOOD + "container_gpu: yes\n", "container_gpu is 'yes', it must be nv or rocm or none"),
        ("- a\n", "must hold keys and values"),
        (GOOD + "accelerator: tpu\n", "cuda or cpu"),
        ("a: [\n", "is not valid YAML"),
    ],
)
def test_bad_profiles_are_sentences_that_name_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DlbhpcError, match=r"site\.yaml") as caught:
        load(tmp_path, text)
    assert message in str(caught.value)


def test_flags_go_over_the_profile(tmp_path: Path) -> None:
    text = GOOD + "partition: gpu\ntime: 10\nsbatch_lines: [--nice=1]\n"
    profile = load(
        tmp_path, text, partition="other", grace_seconds=90, sbatch_lines=("--exclude=n1",)
    )
    assert (profile.partition, profile.grace_seconds, profile.time) == ("other", 90, "10")
    assert profile.sbatch_lines == ("--nice=1", "--exclude=n1")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"time": "a day"}, "--time is wrong: 'a day' is no time"),
        ({"partition": "a\nb"}, "--partition is 'a\\nb', which holds a control character"),
        ({"cpus_per_task": 0}, "--cpus-per-task is 0"),
        ({"grace_seconds": 30}, "--grace-seconds is 30: at least 60"),
        ({"time": "1"}, "--time is 1: a limit of 00:01:00 leaves no time"),
        ({"sbatch_lines": ("--nodes=3",)}, "--sbatch-line must not set --nodes"),
    ],
)
def test_a_bad_flag_is_named_as_the_flag(
    tmp_path: Path, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(DlbhpcError) as caught:
        load(tmp_path, GOOD, **flags)
    assert str(caught.value).startswith(message)


def test_a_flag_that_does_not_go_with_the_file_names_the_files_key(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"site\.yaml: time is 5:00: .* 600 seconds"):
        load(tmp_path, GOOD + "time: 5:00\n", grace_seconds=600)


@pytest.mark.parametrize("time", ["UNLIMITED", "infinite", "0"])
def test_any_warning_fits_a_job_without_a_limit(tmp_path: Path, time: str) -> None:
    assert load(tmp_path, GOOD + f"time: {time}\n").time == time


@pytest.mark.parametrize(
    ("chosen", "sbatch", "expected"),
    [
        ("mysite", "/usr/bin/sbatch", "mysite"),
        (None, "/usr/bin/sbatch", "slurm"),
        (None, None, "local"),
        ("", None, "local"),
    ],
)
def test_the_default_profile(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, sbatch: str | None, expected: str
) -> None:
    monkeypatch.delenv(profiles.DEFAULT_VARIABLE, raising=False)
    if chosen is not None:
        monkeypatch.setenv(profiles.DEFAULT_VARIABLE, chosen)
    monkeypatch.setattr(profiles.shutil, "which", lambda name: sbatch)
    assert default_profile_name() == expected
