"""The node-local folder of an attempt."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.scratch import SCRATCH_VARIABLE, scratch_environment


def test_temporary_files_and_caches_go_into_the_attempts_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dlbhpc-7-00002"
    environment = scratch_environment({SCRATCH_VARIABLE: str(folder)})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert environment == {
        "TMPDIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


def test_every_task_of_a_node_shares_the_folder(tmp_path: Path) -> None:
    named = {SCRATCH_VARIABLE: str(tmp_path / "dlbhpc-7-00001")}
    first = scratch_environment({**named, "SLURM_LOCALID": "1"})
    (tmp_path / "dlbhpc-7-00001" / "kept").touch()
    assert scratch_environment({**named, "SLURM_LOCALID": "0"}) == first
    assert (tmp_path / "dlbhpc-7-00001" / "kept").exists()


def test_without_a_scratch_path_nothing_changes() -> None:
    assert scratch_environment({}) == {}


def test_what_earlier_attempts_of_the_job_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("dlbhpc-7-00001/triton", "dlbhpc-77-00001", "dlbhpc-8-00001", "other"):
        (tmp_path / name).mkdir(parents=True)
    scratch_environment({SCRATCH_VARIABLE: str(tmp_path / "dlbhpc-7-00002")})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["dlbhpc-7-00002", "dlbhpc-77-00001", "dlbhpc-8-00001", "other"]


def test_a_scratch_path_that_a_node_lacks_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"cannot be made on .*No such file.*correct scratch"):
        scratch_environment({SCRATCH_VARIABLE: str(tmp_path / "missing" / "dlbhpc-7-00001")})


def test_a_folder_that_somebody_else_left_there_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "dlbhpc-7-00001").symlink_to(tmp_path / "theirs")
    with pytest.raises(DlbhpcError, match="is not this user's folder"):
        scratch_environment({SCRATCH_VARIABLE: str(tmp_path / "dlbhpc-7-00001")})
