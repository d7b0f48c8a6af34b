"""The teacher of a launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.teacher.names import Backbone
from dlbhpc.inputs.teacher.transform import MASKED, UNIFORM, Vocabulary
from dlbhpc.inputs.teaching import (
    adaptation_of,
    check_launch_teacher,
    ensure_adapted_teacher,
)
from dlbhpc.recipe import read_recipe, trial_of
from tests.inputs.teacher.conftest import hyper_parameters, make_state, save, torch


@pytest.mark.parametrize(
    ("recipe", "dataset", "family", "transformation", "base", "mask"),
    [
        ("mdlm_sdtt", "lm1b", "masked_mdlm", MASKED, 30_522, 103),
        ("mdlm_sdtt", "owt", "masked_mdlm", MASKED, 50_257, None),
        ("mdlm_di4c", "lm1b", "masked_mdlm", MASKED, 30_522, 103),
        ("duo_di4c", "owt", "uniform_duo", UNIFORM, 50_257, None),
    ],
)
def test_a_locked_recipe_adapts_to_its_vocabulary_and_twelve_blocks(
    recipe: str, dataset: str, family: str, transformation: str, base: int, mask: int | None
) -> None:
    adaptation = adaptation_of(read_recipe(recipe, dataset))
    assert (adaptation.family, adaptation.transformation) == (family, transformation)
    assert adaptation.vocabulary == Vocabulary(base, mask)
    assert adaptation.backbone == Backbone(blocks=12, heads=12)


def test_a_trial_goes_through_the_same_code_at_its_own_size() -> None:
    trial = trial_of(read_recipe("mdlm_sdtt", "lm1b"), {"blocks": 3})
    adaptation = adaptation_of(trial)
    assert adaptation.vocabulary == Vocabulary(512, 103)
    assert adaptation.backbone == Backbone(blocks=3, heads=2)


def launch_of(root: Path, recipe: str, **config: object) -> Launch:
    """A trial's launch with a teacher of this configuration at hand."""
    state = make_state(512, blocks=2, h=64, c=128, f=256)
    save(root / "t.ckpt", state, hyper_parameters=hyper_parameters(**config))
    return plan_launch(Request(recipe=recipe, trial={}, teacher=Path("t.ckpt"), root=root))


DUO = {"algo": {"name": "duo"}}


def test_a_teacher_that_is_used_as_it_is_is_checked_and_not_adapted(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "duo_dcd", **DUO)
    check_launch_teacher(launch)
    assert ensure_adapted_teacher(launch) is None


def test_an_unadapted_teacher_of_the_wrong_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"t\.ckpt is of the family uniform_duo"):
        check_launch_teacher(launch_of(tmp_path, "fmlm", **DUO))


def test_an_unadapted_teacher_without_ema_is_refused(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "duo_dcd", **DUO)
    torch.save({"state_dict": make_state()}, tmp_path / "t.ckpt")
    with pytest.raises(DlbhpcError, match=r"t\.ckpt holds no EMA"):
        check_launch_teacher(launch)


def test_checking_writes_nothing_and_adapting_writes_into_the_output(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    check_launch_teacher(launch)
    assert not launch.output.folder.exists()
    record = ensure_adapted_teacher(launch)
    assert record is not None
    assert launch.output.adapted_teacher.is_file()
    assert launch.output.adapted_teacher_provenance.is_file()
    check_launch_teacher(launch)


def test_a_teacher_that_only_trusting_could_load_is_taken_once_it_is_adapted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlbhpc.inputs import teaching

    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    ensure_adapted_teacher(launch)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the checkpoint was loaded again")

    monkeypatch.setattr(teaching, "check_teacher", refuse)
    check_launch_teacher(launch)


def test_a_recipe_without_a_teacher_needs_none(tmp_path: Path) -> None:
    launch = replace(launch_of(tmp_path, "duo_di4c", **DUO), teacher=None)
    check_launch_teacher(launch)
    assert ensure_adapted_teacher(launch) is None
