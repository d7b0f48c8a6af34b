"""Every route against the recorded surfaces, and what makes one fail."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.layout import CONF, SURFACES
from dlbhpc.upstream.routes import (
    FAILED,
    OK,
    UNVERIFIED,
    Route,
    check_route,
    routes,
    surface_of,
)
from dlbhpc.upstream.surface import read_surface

NEIGHBOURING = {"flm", "fmlm", "mdlm_sdtt"}
"""Recipes whose upstream's pinned commit was not at hand."""


@pytest.fixture(scope="module")
def every() -> dict[str, Route]:
    return {route.name: route for route in routes()}


def test_all_routes_fit_and_those_of_a_neighbouring_commit_say_so(every: dict[str, Route]) -> None:
    assert len(every) == 20
    for route in every.values():
        verdict = check_route(route, surface_of(route))
        expected = UNVERIFIED if route.recipe.name in NEIGHBOURING else OK
        assert verdict.status == expected, verdict
        # Locked and trial.
        assert len(route.commands) == 2


def test_the_options_of_fmlm_do_not_exist_in_the_neighbouring_commit(
    every: dict[str, Route],
) -> None:
    verdict = check_route(every["fmlm on lm1b"], read_surface("flm", SURFACES))
    named = [note.partition(":")[0] for note in verdict.notes[1:]]
    assert named == ["algo", "algo.distillation_method", "algo.use_mse_loss_psd",
                     "algo.initialize_student_from_teacher", "algo.teacher_path"]  # fmt: skip


def test_at_the_pin_nothing_is_excused(every: dict[str, Route]) -> None:
    pinned = replace(read_surface("flm", SURFACES), pinned=True)
    assert check_route(every["fmlm on lm1b"], pinned).status == FAILED
    assert check_route(every["flm on lm1b"], pinned).status == OK


def test_only_the_unverified_group_is_excused(every: dict[str, Route]) -> None:
    route = every["fmlm on lm1b"]
    wrong = replace(route, commands=((*route.commands[0], "trainer.max_step=1"),))
    verdict = check_route(wrong, read_surface("flm", SURFACES))
    assert verdict.status == FAILED
    assert any("an existing key, as trainer.max_steps" in note for note in verdict.notes)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("algo.step_size", "algo.stepsize", "algo.stepsize: candi at cd57ae9eec98 wants an exi"),
        ("scratch_dir", "+scratch_dir", "+scratch_dir: candi at cd57ae9eec98 wants no +"),
        ("algo: candi", "algo: cande", "algo: candi at cd57ae9eec98 wants an option"),
        ("algo.temp", "++algo.temp", "never ++"),
    ],
)
def test_a_wrong_key_in_conf_fails_and_is_named(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    conf = Path(shutil.copytree(CONF, tmp_path / "conf"))
    path = conf / "recipe/candi.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    verdicts = {
        route.name: check_route(route, surface_of(route))
        for route in routes(conf)
        if route.recipe.name == "candi"
    }
    assert all(verdict.status == FAILED for verdict in verdicts.values())
    assert named in verdicts["candi on lm1b"].notes[0]


def test_the_command_exits_1_where_a_route_fails_and_0_where_none_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every: dict[str, Route]
) -> None:
    assert main(["recipes", "check"]) == 0
    assert "by surface: 14 ok, 6 unverified" in capsys.readouterr().out
    wrong = replace(every["mdlm on owt"], commands=(("trainer.devises=1",),))
    monkeypatch.setattr("dlbhpc.cli.recipes_check.routes", lambda: [wrong])
    assert main(["recipes", "check"]) == 1
    shown = capsys.readouterr().out
    assert "mdlm on owt  failed" in shown
    assert "trainer.devises: mdlm at c112c526d193 wants an existing key, as trainer.dev" in shown
