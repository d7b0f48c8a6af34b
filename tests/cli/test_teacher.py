"""The ``teacher`` command."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli import teacher
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.lease import Lease
from dlbhpc.scheduler.processes import ProcessId
from tests.inputs.teacher.conftest import hyper_parameters, make_state, save

BASE = 512
MDLM = {"parameterization": "subs", "diffusion": "absorbing_state"}


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    teacher.add_arguments(parser)
    return teacher.run(parser.parse_args(arguments))


def trial_teacher(path: Path, vocab: int = BASE, seed: int = 0, **config: Any) -> Path:
    """What a trial's base run leaves: the checkpoint of a tiny model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = make_state(vocab, blocks=2, seed=seed, h=64, c=128, f=256)
    return save(path, state, hyper_parameters=hyper_parameters(**config))


@pytest.mark.parametrize(
    ("recipe", "dataset", "vocab", "config"),
    [
        ("mdlm_sdtt", "lm1b", BASE, MDLM),
        ("mdlm_sdtt", "owt", BASE + 1, MDLM),
        ("mdlm_di4c", "lm1b", BASE, MDLM),
        ("duo_di4c", "lm1b", BASE, {"algo": {"name": "duo"}}),
        ("duo_di4c", "owt", BASE + 1, {"algo": {"name": "duo"}}),
    ],
)
def test_a_trial_teacher_is_adapted_where_the_students_trial_looks(
    tmp_path: Path, recipe: str, dataset: str, vocab: int, config: dict[str, Any]
) -> None:
    trial_teacher(tmp_path / "teachers" / "t.ckpt", vocab, **config)
    common = ["--recipe", recipe, "--dataset", dataset, "--trial", "--root", str(tmp_path)]
    assert run("adapt", *common, "--teacher", "teachers/t.ckpt") == 0
    inputs = tmp_path / "checkpoints" / "trials" / dataset / recipe / "inputs"
    record = json.loads((inputs / "teacher_adapted.provenance.json").read_text())
    assert record["output"]["path"] == str(inputs / "teacher_adapted.ckpt")
    assert record["target_vocab"] == BASE + 1
    if recipe.startswith("mdlm"):
        assert record["source_mask_index"] == {"lm1b": 103, "owt": BASE}[dataset]


ADAPT = ("adapt", "--recipe", "mdlm_sdtt", "--trial", "--teacher", "t.ckpt")


def leased(output: OutputLayout, owner: ProcessId | None) -> None:
    assert owner is not None
    lease = Lease.new("local", "", owner.pid, owner.started)
    output.lease.write_text(json.dumps(asdict(lease)))


def completed(output: OutputLayout) -> None:
    output.completed.write_text("{}")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (completed, "holds a completed run"),
        (
            lambda output: leased(output, ProcessId.of(os.getpid())),
            "belongs to local .* which adapts its teacher",
        ),
    ],
)
def test_the_teacher_of_a_completed_or_running_run_is_not_replaced(
    tmp_path: Path, state: Callable[[OutputLayout], None], message: str
) -> None:
    root = ("--root", str(tmp_path))
    trial_teacher(tmp_path / "t.ckpt", **MDLM)
    assert run(*ADAPT, *root) == 0
    output = OutputLayout(tmp_path / "checkpoints" / "trials" / "lm1b" / "mdlm_sdtt")
    before = output.adapted_teacher.read_bytes()
    state(output)
    trial_teacher(tmp_path / "t.ckpt", seed=1, **MDLM)
    with pytest.raises(DlbhpcError, match=f"mdlm_sdtt {message}.* --output"):
        run(*ADAPT, *root)
    assert output.adapted_teacher.read_bytes() == before
    assert run(*ADAPT, *root, "--output", "checkpoints/trials/other") == 0


def test_the_teacher_of_a_run_that_ended_unfinished_is_made_again(tmp_path: Path) -> None:
    trial_teacher(tmp_path / "t.ckpt", **MDLM)
    output = OutputLayout(tmp_path / "checkpoints" / "trials" / "lm1b" / "mdlm_sdtt")
    output.folder.mkdir(parents=True)
    leased(output, ProcessId(pid=1, started="another boot/1"))
    assert run(*ADAPT, "--root", str(tmp_path)) == 0
    assert output.adapted_teacher.is_file()


def test_by_default_the_teacher_is_that_of_the_base_run(tmp_path: Path) -> None:
    base = tmp_path / "checkpoints" / "trials" / "lm1b" / "mdlm"
    trial_teacher(base / "model.ckpt", **MDLM)
    assert run("adapt", "--recipe", "mdlm_sdtt", "--trial", "--root", str(tmp_path)) == 0


@pytest.mark.parametrize("recipe", ["mdlm", "duo_dcd", "fmlm"])
def test_a_recipe_that_adapts_nothing_says_so(tmp_path: Path, recipe: str) -> None:
    with pytest.raises(DlbhpcError, match=f"{recipe} adapts no teacher"):
        run("adapt", "--recipe", recipe, "--root", str(tmp_path))


def test_a_locked_student_wants_twelve_blocks(tmp_path: Path) -> None:
    save(tmp_path / "t.ckpt", make_state(30_522, blocks=2))
    with pytest.raises(DlbhpcError, match=r"t\.ckpt .*\(2 blocks, not 12\)"):
        run("adapt", "--recipe", "mdlm_sdtt", "--teacher", "t.ckpt", "--root", str(tmp_path))


def test_an_inspection_is_printed_for_people_and_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trial_teacher(tmp_path / "t.ckpt", **MDLM)
    assert run("inspect", str(path)) == 0
    assert "masked_mdlm" in capsys.readouterr().out
    assert run("inspect", str(path), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["vocab"], facts["blocks"], facts["is_dit"]) == (BASE, 2, True)


def test_only_a_trusted_checkpoint_runs_its_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "trap"),)

    path = save(tmp_path / "t.ckpt", make_state(), callbacks=Evil())
    with pytest.raises(DlbhpcError, match="would run code"):
        run("inspect", str(path))
    assert not (tmp_path / "trap").exists()
    assert run("inspect", str(path), "--trust-checkpoint") == 0
    assert (tmp_path / "trap").exists()


def test_help_says_what_a_pickle_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("adapt", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "may name any function to call" in text
    assert "run whatever they like as you" in text
