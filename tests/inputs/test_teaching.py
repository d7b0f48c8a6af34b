"""The teacher of a launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.teacher.names import Backbone
from dlbhpc.inputs.teacher.transform import MASKED, UNIFORM, Vocabulary
from dlbhpc.inputs.teaching import (
    adapt_teacher,
    adaptation_of,
    check_launch_teacher,
    ensure_adapted_teacher,
    teacher_digest,
    teacher_is_there,
)
from dlbhpc.recipe import read_recipe, trial_of
from tests.inputs.teacher.conftest import hyper_parameters, make_state, torch, trained


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


def trial_state(vocab: int = 512, blocks: int = 2) -> dict[str, Any]:
    return make_state(vocab, blocks=blocks, h=64, c=128, f=256)


def launch_of(root: Path, recipe: str, **config: object) -> Launch:
    """A trial's launch with a teacher of this configuration at hand."""
    trained(root / "t.ckpt", trial_state(), hyper_parameters=hyper_parameters(**config))
    return plan_launch(Request(recipe=recipe, trial={}, teacher=Path("t.ckpt"), root=root))


DUO = {"algo": {"name": "duo"}}
FLM = {"algo": {"name": "flm"}}
UNADAPTED = pytest.mark.parametrize(("recipe", "config"), [("duo_dcd", DUO), ("fmlm", FLM)])
LAST = "output_layer.adaLN_modulation.bias"


@UNADAPTED
def test_a_teacher_that_is_used_as_it_is_is_checked_and_not_adapted(
    tmp_path: Path, recipe: str, config: dict[str, Any]
) -> None:
    launch = launch_of(tmp_path, recipe, **config)
    check_launch_teacher(launch)
    assert ensure_adapted_teacher(launch, teacher_digest(launch)) is None


@UNADAPTED
def test_an_unadapted_teacher_may_have_one_more_token_and_a_teacher_of_its_own(
    tmp_path: Path, recipe: str, config: dict[str, Any]
) -> None:
    launch = launch_of(tmp_path, recipe, **config)
    state = trial_state(513)
    trained(tmp_path / "t.ckpt", state)
    content = torch.load(tmp_path / "t.ckpt", weights_only=True)
    content["state_dict"]["teacher.norm1.weight"] = torch.ones(3)  # both upstreams drop it
    torch.save(content, tmp_path / "t.ckpt")
    check_launch_teacher(launch)


def nan_in(name: str) -> dict[str, Any]:
    state = trial_state()
    state[name].view(-1)[-1] = float("nan")
    return state


def without(name: str) -> dict[str, Any]:
    return {key: tensor for key, tensor in trial_state().items() if key != name}


UNFIT = [
    (lambda: nan_in("vocab_embed.embedding"), "vocab_embed.embedding holds values that are not"),
    (lambda: nan_in(LAST), f"{LAST} holds values that are not finite"),
    (lambda: trial_state(700), "has a vocabulary of 700 tokens, the dataset's is 512"),
    (lambda: trial_state(blocks=3), r"\(3 blocks, not 2\)"),
    (lambda: {**trial_state(), "odd": torch.ones(1)}, "it has the unexpected odd"),
    (lambda: without(LAST), f"it lacks {LAST}"),
    (lambda: {**trial_state(), LAST: torch.ones(2, 64)}, f"{LAST} has 2 dimensions"),
]


@UNADAPTED
@pytest.mark.parametrize(("make", "message"), UNFIT, ids=[message for _, message in UNFIT])
def test_an_unadapted_teacher_of_another_shape_or_content_is_refused(
    tmp_path: Path, recipe: str, config: dict[str, Any], make: Any, message: str
) -> None:
    launch = launch_of(tmp_path, recipe, **config)
    trained(tmp_path / "t.ckpt", make())
    with pytest.raises(DlbhpcError, match=rf"t\.ckpt.*{message}"):
        check_launch_teacher(launch)


def averages(**changed: Any) -> list[Any]:
    return list({**trial_state(), **changed}.values())


BAD_AVERAGES = [
    (None, "holds no EMA, which the"),
    ({"shadow_params": None}, "holds no EMA, which the"),
    ({"shadow_params": [*averages()[:-1], 1.0]}, "holds no EMA, which the"),
    ({"shadow_params": averages()[:-1]}, "EMA has 29 averages, the backbone has 30 parameters"),
    ({"shadow_params": averages()[::-1]}, r"EMA of vocab_embed.embedding has the shape \(128,\)"),
    (
        {"shadow_params": averages(**{LAST: torch.full((128,), float("inf"))})},
        f"EMA of {LAST} holds values that are not finite",
    ),
]


@UNADAPTED
@pytest.mark.parametrize(("ema", "message"), BAD_AVERAGES, ids=range(len(BAD_AVERAGES)))
def test_an_unadapted_teacher_whose_ema_is_not_that_of_its_backbone_is_refused(
    tmp_path: Path, recipe: str, config: dict[str, Any], ema: Any, message: str
) -> None:
    launch = launch_of(tmp_path, recipe, **config)
    trained(tmp_path / "t.ckpt", trial_state(), ema=ema)
    with pytest.raises(DlbhpcError, match=rf"t\.ckpt.*{message}"):
        check_launch_teacher(launch)


@pytest.mark.parametrize("prefix", ["", "backbone._orig_mod."])
def test_duo_finds_its_teacher_by_the_names_and_flm_by_the_place(
    tmp_path: Path, prefix: str
) -> None:
    for recipe in ("duo_dcd", "fmlm"):
        launch = launch_of(tmp_path, recipe)
        trained(tmp_path / "t.ckpt", trial_state(), prefix)
        if recipe == "fmlm":
            check_launch_teacher(launch)
            continue
        with pytest.raises(DlbhpcError, match=r"t\.ckpt.* is not called backbone\."):
            check_launch_teacher(launch)


@pytest.mark.parametrize("missing", ["loops", "rotary_emb.inv_freq"])
def test_what_duo_loads_beside_the_weights_is_asked_for(tmp_path: Path, missing: str) -> None:
    launch = launch_of(tmp_path, "duo_dcd")
    content = torch.load(tmp_path / "t.ckpt", weights_only=False)
    content.pop(missing, None)
    content["state_dict"].pop(f"backbone.{missing}", None)
    torch.save(content, tmp_path / "t.ckpt")
    with pytest.raises(DlbhpcError, match=rf"t\.ckpt.* {missing}"):
        check_launch_teacher(launch)


def test_an_unadapted_teacher_of_the_wrong_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"t\.ckpt is of the family uniform_duo"):
        check_launch_teacher(launch_of(tmp_path, "fmlm", **DUO))


def test_an_unadapted_teacher_without_ema_is_refused(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "duo_dcd", **DUO)
    content = torch.load(tmp_path / "t.ckpt", weights_only=False)
    del content["ema"]
    torch.save(content, tmp_path / "t.ckpt")
    with pytest.raises(DlbhpcError, match=r"t\.ckpt holds no EMA"):
        check_launch_teacher(launch)


def test_checking_writes_nothing_and_adapting_writes_into_the_output(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    check_launch_teacher(launch)
    assert not launch.output.folder.exists()
    record = ensure_adapted_teacher(launch, teacher_digest(launch))
    assert record is not None
    assert launch.output.adapted_teacher.is_file()
    assert launch.output.adapted_teacher_provenance.is_file()
    check_launch_teacher(launch)


def test_a_teacher_that_only_trusting_could_load_is_taken_once_it_is_adapted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlbhpc.inputs import teaching

    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    ensure_adapted_teacher(launch, teacher_digest(launch))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the checkpoint was loaded again")

    monkeypatch.setattr(teaching, "check_teacher", refuse)
    check_launch_teacher(launch)


def test_a_recipe_without_a_teacher_needs_none(tmp_path: Path) -> None:
    launch = replace(launch_of(tmp_path, "duo_di4c", **DUO), teacher=None)
    check_launch_teacher(launch)
    assert ensure_adapted_teacher(launch, teacher_digest(launch)) is None


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are digested from here on."""
    from dlbhpc import files
    from dlbhpc.inputs import teaching

    seen: list[str] = []
    real = files.file_digest

    def digest(path: Path) -> str:
        seen.append(path.name)
        return real(path)

    monkeypatch.setattr(files, "file_digest", digest)
    monkeypatch.setattr(teaching, "file_digest", digest)
    return seen


def test_a_teacher_that_is_used_as_it_is_is_read_again_only_once_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_of(tmp_path, "duo_dcd", **DUO)
    begun_with = teacher_digest(launch)
    assert not launch.output.folder.exists(), "nothing is written before the run is submitted"
    seen = reads(monkeypatch)
    assert [teacher_digest(launch, begun_with) for _ in range(3)] == [begun_with] * 3
    assert seen == ["t.ckpt"]
    trained(tmp_path / "t.ckpt", trial_state(513))
    assert teacher_digest(launch, begun_with) != begun_with


def test_once_adapted_a_teacher_may_change_or_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    begun_with = teacher_digest(launch)
    record = ensure_adapted_teacher(launch, begun_with)
    adapted = launch.output.adapted_teacher
    seen = reads(monkeypatch)
    trained(tmp_path / "t.ckpt", trial_state(513))
    assert teacher_digest(launch) != begun_with, "another run would learn from another teacher"
    assert teacher_digest(launch, begun_with) == begun_with
    (tmp_path / "t.ckpt").unlink()
    assert teacher_is_there(launch)
    assert teacher_digest(launch) == begun_with, "as when the run is submitted again"
    assert ensure_adapted_teacher(launch, begun_with) == record
    check_launch_teacher(launch)
    assert seen == [adapted.name, "t.ckpt"], "what it was adapted to is read once"
    adapted.write_bytes(adapted.read_bytes()[:-1])
    assert not teacher_is_there(launch), "what is damaged stands for nothing"


def test_what_another_teacher_was_adapted_to_meanwhile_is_not_what_the_run_began_with(
    tmp_path: Path,
) -> None:
    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    begun_with = teacher_digest(launch)
    parameters = hyper_parameters(**DUO)
    state = {name: tensor + 1 for name, tensor in trial_state().items()}
    trained(tmp_path / "other.ckpt", state, hyper_parameters=parameters)
    adapt_teacher(launch.recipe, tmp_path / "other.ckpt", launch.output)
    assert teacher_digest(launch, begun_with) == begun_with
    record = ensure_adapted_teacher(launch, begun_with)
    assert record is not None
    assert record["source"]["sha256"] == begun_with


def test_a_teacher_that_is_replaced_just_before_it_is_adapted_is_refused(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "duo_di4c", **DUO)
    with pytest.raises(DlbhpcError, match=r"t\.ckpt was replaced while the run began"):
        ensure_adapted_teacher(launch, "0" * 64)
