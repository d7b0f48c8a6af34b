"""Facts are read out of a checkpoint without torch, and nothing of it is executed."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.checkpoint import checkpoint_step, read_facts

Write = Callable[[Path, Any], bytes]


def test_the_step_of_a_real_torch_checkpoint_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is what writes checkpoints")
    path = tmp_path / "last.ckpt"
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    content = {
        "global_step": 42,
        "epoch": 1,
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "dtype": torch.bfloat16,
    }
    torch.save(content, path)
    facts = read_facts(path)
    assert facts["epoch"] == 1
    assert list(facts["state_dict"]) == ["weight", "bias"]
    assert checkpoint_step(path) == 42


class Malicious:
    """Unpickled in the ordinary way, it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_nothing_that_a_checkpoint_pickles_is_executed(
    tmp_path: Path, write_checkpoint: Write
) -> None:
    path, trap = tmp_path / "evil.ckpt", tmp_path / "trap"
    write_checkpoint(path, {"global_step": 3, "hyper_parameters": Malicious(trap)})
    with zipfile.ZipFile(path) as archive:
        pickle.loads(archive.read("archive/data.pkl"))
    assert trap.is_dir(), "the file would have done harm"
    trap.rmdir()
    assert checkpoint_step(path) == 3
    assert not trap.exists()


class Foreign:
    """Stands for a configuration object of a library that is not installed here."""

    def __init__(self) -> None:
        self.nested = {"a": [1, 2]}


class ForeignList(list):
    pass


class ForeignDict(dict):
    pass


def test_foreign_objects_are_passed_over(tmp_path: Path, write_checkpoint: Write) -> None:
    path = tmp_path / "last.ckpt"
    foreign = [Foreign(), ForeignList([1]), ForeignDict(a=1), {Foreign(): 1}]
    write_checkpoint(path, {"foreign": foreign, "global_step": 5})
    assert checkpoint_step(path) == 5


@pytest.mark.parametrize("step", [None, "42", True, 1.0])
def test_a_checkpoint_without_a_whole_step_is_a_sentence(
    tmp_path: Path, write_checkpoint: Write, step: object
) -> None:
    write_checkpoint(tmp_path / "a.ckpt", {"global_step": step})
    with pytest.raises(DlbhpcError, match=r"a\.ckpt names no step: global_step"):
        checkpoint_step(tmp_path / "a.ckpt")


def test_another_key_may_hold_the_step(tmp_path: Path, write_checkpoint: Write) -> None:
    write_checkpoint(tmp_path / "a.ckpt", {"step": 13})
    assert checkpoint_step(tmp_path / "a.ckpt", key="step") == 13


@pytest.mark.parametrize("cut", [0, 1, 10, 100])
def test_a_truncated_checkpoint_is_a_sentence(
    tmp_path: Path, write_checkpoint: Write, cut: int
) -> None:
    path = tmp_path / "a.ckpt"
    data = write_checkpoint(path, {"global_step": 1})
    path.write_bytes(data[:cut])
    with pytest.raises(DlbhpcError, match=r"a\.ckpt cannot be read"):
        read_facts(path)


def test_a_missing_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"there is no checkpoint .*a\.ckpt"):
        read_facts(tmp_path / "a.ckpt")


def test_a_zip_that_is_no_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(DlbhpcError, match="is no torch checkpoint"):
        read_facts(tmp_path / "a.ckpt")


def test_a_checkpoint_that_is_no_mapping_is_a_sentence(
    tmp_path: Path, write_checkpoint: Write
) -> None:
    write_checkpoint(tmp_path / "a.ckpt", [1, 2])
    with pytest.raises(DlbhpcError, match="holds no mapping"):
        read_facts(tmp_path / "a.ckpt")
