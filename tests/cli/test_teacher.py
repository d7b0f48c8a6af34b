"""The ``teacher`` command."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli import teacher
from dlbhpc.errors import DlbhpcError
from tests.inputs.teacher.conftest import hyper_parameters, make_state, save

BASE = 512
MDLM = {"parameterization": "subs", "diffusion": "absorbing_state"}


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    teacher.add_arguments(parser)
    return teacher.run(parser.parse_args(arguments))


def trial_teacher(path: Path, vocab: int = BASE, **config: Any) -> Path:
    """What a trial's base run leaves: the checkpoint of a tiny model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = make_state(vocab, blocks=2, h=64, c=128, f=256)
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
