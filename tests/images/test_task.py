"""The command that goes through an image, and what of the host goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.task import Bind, RunImage, enter, passed_variables

SOURCE = Path("/root/upstreams/duo")
IMAGE = RunImage(
    name="duo",
    content_sha256="c" * 64,
    program="apptainer",
    mount="kernel",
    gpu="nv",
    source="/opt/dlbhpc/upstream/duo",
)
HOST = {
    "PATH": "/usr/bin",
    "HOME": "/home/somebody",
    "PYTHONPATH": "/home/somebody/lib",
    "LD_LIBRARY_PATH": "/opt/cuda",
    "SLURM_PROCID": "3",
    "SLURM_ARRAY_TASK_ID": "7",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NCCL_SOCKET_IFNAME": "ib0",
    "DLBHPC_SCRATCH": "/scratch/1",
    "SINGULARITYENV_LEAK": "1",
    "APPTAINERENV_LEAK": "1",
    "APPTAINER_BIND": "/home/somebody/x:/opt/venv",
    "APPTAINER_OVERLAY": "changes.img",
    "SINGULARITY_ENV_FILE": "/home/somebody/variables",
    "APPTAINER_CACHEDIR": "/scratch/cache",
    "APPTAINER_USERNS": "1",
    "MY_TOKEN": "secret",
}


def entered(**changes: object) -> tuple[list[str], dict[str, str]]:
    image = RunImage(**{**IMAGE.__dict__, **changes})  # type: ignore[arg-type]
    return enter(
        image,
        Path("/root/images/duo.sif"),
        ["python", "-u", f"{SOURCE}/main.py", f"path='{SOURCE}/integral/x.pkl'", "a=1,2"],
        own={"PYTHONPATH": f"{SOURCE}:/checkout", "HF_HOME": "/root/data/hf, it's"},
        host=HOST,
        binds=[Bind(Path("/root")), Bind(Path("/root/out put"), writable=True)],
        home=Path("/root/out put/tmp/home"),
        source=SOURCE,
    )


def test_the_command_names_the_frozen_source_and_binds_only_what_it_is_given() -> None:
    argv, _ = entered()
    assert argv == [
        *("apptainer", "exec", "--cleanenv", "--home", "/root/out put/tmp/home"),
        *("--pwd", "/opt/dlbhpc/upstream/duo", "--nv"),
        *("--bind", "/root:/root:ro", "--bind", "/root/out put:/root/out put:rw"),
        "/root/images/duo.sif",
        *("python", "-u", "/opt/dlbhpc/upstream/duo/main.py"),
        *("path='/opt/dlbhpc/upstream/duo/integral/x.pkl'", "a=1,2"),
    ]


@pytest.mark.parametrize(("gpu", "flags"), [("nv", ["--nv"]), ("rocm", ["--rocm"]), ("none", [])])
def test_the_drivers_libraries_come_in_by_profile(gpu: str, flags: list[str]) -> None:
    argv, _ = entered(gpu=gpu)
    assert [word for word in argv if word in ("--nv", "--rocm")] == flags


@pytest.mark.parametrize(
    ("program", "prefix"), [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_")]
)
def test_variables_enter_by_name_only(program: str, prefix: str) -> None:
    argv, environment = entered(program=program)
    assert argv[0] == program
    inside = {
        key.removeprefix(prefix): value
        for key, value in environment.items()
        if key.startswith(("APPTAINERENV_", "SINGULARITYENV_"))
    }
    assert inside == {
        "SLURM_PROCID": "3",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_SOCKET_IFNAME": "ib0",
        "DLBHPC_SCRATCH": "/scratch/1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "/opt/dlbhpc/upstream/duo:/checkout",
        "HF_HOME": "/root/data/hf, it's",
    }


def test_what_the_profile_sets_enters_but_for_what_would_break_the_image() -> None:
    named = entered(variables=("MY_TOKEN", "PATH", "LD_LIBRARY_PATH", "NOT_SET"))[1]
    assert named["APPTAINERENV_MY_TOKEN"] == "secret"
    assert named.keys() - entered()[1].keys() == {"APPTAINERENV_MY_TOKEN"}


def test_the_program_itself_starts_in_the_hosts_environment() -> None:
    _, environment = entered()
    assert environment["PATH"] == "/usr/bin"
    assert environment["HOME"] == "/home/somebody"


def test_an_array_of_the_user_does_not_enter() -> None:
    assert "SLURM_ARRAY_TASK_ID" not in passed_variables(HOST)


@pytest.mark.parametrize("name", ["a,b", "a:b"])
def test_a_path_that_a_bind_would_split_is_refused(name: str) -> None:
    with pytest.raises(DlbhpcError, match="comma or a colon"):
        _ = Bind(Path("/root") / name).text


def test_a_folder_whose_name_only_begins_alike_is_left_alone() -> None:
    argv, _ = enter(
        IMAGE,
        Path("x.sif"),
        ["python", f"{SOURCE}_2/a", f"{SOURCE}.bundle", f"{SOURCE}"],
        own={},
        host={},
        binds=[],
        home=Path("/h"),
        source=SOURCE,
    )
    assert argv[-3:] == [f"{SOURCE}_2/a", f"{SOURCE}.bundle", IMAGE.source]


def test_of_the_users_settings_only_those_enter_that_the_profile_names() -> None:
    def settings(environment: dict[str, str]) -> set[str]:
        return {key for key in environment if key.startswith(("APPTAINER_", "SINGULARITY_"))}

    assert settings(entered()[1]) == {"APPTAINER_CACHEDIR"}
    named = entered(variables=("APPTAINER_USERNS",))[1]
    assert settings(named) == {"APPTAINER_CACHEDIR", "APPTAINER_USERNS"}
