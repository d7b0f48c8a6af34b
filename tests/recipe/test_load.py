"""Recipes composed from conf: the locked numbers, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import CONF
from dlbhpc.recipe import Recipe, UnknownRecipe, list_recipes, load_recipe, read_recipe

# recipe, dataset: steps, global batch, learning rate, per device, GPUs, milestone, selected step
NUMBERS: dict[tuple[str, str], tuple[int, int, float, int, int, int, int | None]] = {
    **{
        (name, dataset): (1_000_000, 512, 3e-4, per_device, 8, 20_000, None)
        for name in ("flm", "duo", "mdlm", "candi")
        for dataset, per_device in (("lm1b", 64), ("owt", 16))
    },
    ("rdlm", "lm1b"): (1_000_000, 512, 3e-4, 64, 8, 20_000, None),
    ("fmlm", "lm1b"): (100_000, 512, 3e-4, 64, 8, 20_000, None),
    ("fmlm", "owt"): (100_000, 512, 3e-4, 16, 8, 20_000, None),
    ("duo_dcd", "lm1b"): (80_000, 128, 6e-5, 16, 8, 10_000, None),
    ("duo_dcd", "owt"): (80_000, 128, 6e-5, 16, 8, 10_000, None),
    ("mdlm_sdtt", "lm1b"): (80_000, 128, 6e-5, 16, 8, 10_000, 70_000),
    ("mdlm_sdtt", "owt"): (80_000, 128, 6e-5, 16, 8, 10_000, 70_000),
    ("duo_di4c", "lm1b"): (20_000, 2, 3e-5, 1, 2, 10_000, None),
    ("duo_di4c", "owt"): (50_000, 2, 3e-5, 1, 2, 10_000, None),
    ("mdlm_di4c", "lm1b"): (20_000, 2, 3e-5, 1, 2, 10_000, None),
    ("mdlm_di4c", "owt"): (50_000, 2, 3e-5, 1, 2, 10_000, None),
}
EVIDENCE = {
    ("flm", "lm1b"): "paper v3 main",
    ("flm", "owt"): "paper v3 main",
    ("duo", "lm1b"): "paper appendix D",
    ("duo", "owt"): "official release script",
    ("mdlm", "lm1b"): "paper appendix D",
    ("mdlm", "owt"): "official release script",
    ("candi", "lm1b"): "paper appendix D",
    ("candi", "owt"): "project fallback",
    ("rdlm", "lm1b"): "official release script",
    ("fmlm", "lm1b"): "paper v3 main",
    ("fmlm", "owt"): "paper v3 main",
    **{
        (name, dataset): "paper appendix D"
        for name in ("duo_dcd", "mdlm_sdtt", "duo_di4c", "mdlm_di4c")
        for dataset in ("lm1b", "owt")
    },
}
# recipe, family, adapter, loss
TEACHERS = {
    "fmlm": ("flm", "continuous_flm", None, "cross entropy"),
    "duo_dcd": ("duo", "uniform_duo", None, "backward KL"),
    "mdlm_sdtt": ("mdlm", "masked_mdlm", "masked_to_absorbing", "backward KL"),
    "duo_di4c": ("duo", "uniform_duo", "uniform_to_absorbing", "dimensional correlations"),
    "mdlm_di4c": ("mdlm", "masked_mdlm", "masked_to_absorbing", "dimensional correlations"),
}
PINS = {
    "flm": ("david3684/flm", "a1918d5164e5038e37d0b7a4fb2010ce75b863b3"),
    "duo": ("s-sahoo/duo", "7c9b498f5b717de064d6fad7e2509c866e6cb620"),
    "mdlm": ("kuleshov-group/mdlm", "c112c526d193436838c98d81455ee51f90309470"),
    "candi": ("patrickpynadath1/candi-diffusion", "cd57ae9eec98d6ac71cd52bdc50eeec8dfd70f91"),
    "rdlm": ("harryjo97/RDLM", "67443aa6a2d0fa981eb7c6105f9cbc563e59c5c1"),
    "sdtt": ("jdeschena/sdtt", "1150985e90b8f2d5749e4469d5154eff9ec922c4"),
    "di4c": ("sony/di4c", "ac61ff9fe8e85120f9e1d2a8c5a332f8b8353dd3"),
}
ROUTES = sorted(NUMBERS)


def test_there_are_ten_recipes_and_nineteen_routes_besides_the_reference() -> None:
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    assert recipes.pop("reference_mdlm").datasets == ("pydoc",)
    routes = [(name, dataset) for name in recipes for dataset in recipes[name].datasets]
    assert len(recipes) == 10
    assert len(routes) == 19
    assert sorted(routes) == ROUTES


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_the_numbers_of_a_route_are_the_locked_ones(route: tuple[str, str]) -> None:
    recipe = read_recipe(*route)  # the same as Hydra's: see the next test
    assert (
        recipe.steps,
        recipe.global_batch,
        recipe.learning_rate,
        recipe.per_device_batch,
        recipe.gpus_per_node,
        recipe.milestone_every,
        recipe.selected_step,
    ) == NUMBERS[route]
    assert (recipe.warmup_steps, recipe.optimizer, recipe.nodes, recipe.seed) == (
        2500,
        "adam",
        1,
        42,
    )
    sdtt_family = recipe.upstream.name in ("sdtt", "di4c")
    assert recipe.precision == ("bf16-mixed" if sdtt_family else "bf16")
    rounds = (8, 10_000) if recipe.name in ("duo_dcd", "mdlm_sdtt") else (None, None)
    assert (recipe.rounds, recipe.steps_per_round) == rounds
    assert recipe.evidence.source == EVIDENCE[route]
    teacher, loss = recipe.teacher, recipe.loss
    if recipe.name in TEACHERS:
        assert teacher is not None
        assert (teacher.recipe, teacher.family, teacher.adapter, loss) == TEACHERS[recipe.name]
    else:
        assert teacher is None
        assert loss is None
    upstream = recipe.upstream
    assert (upstream.repository, upstream.commit) == PINS[upstream.name]


@pytest.mark.parametrize("route", [*ROUTES, ("reference_mdlm", "pydoc")], ids="-".join)
def test_hydra_and_the_direct_reader_agree(route: tuple[str, str]) -> None:
    assert load_recipe(*route) == read_recipe(*route)


@pytest.mark.parametrize("route", [("flm", "owt"), ("duo_di4c", "lm1b")], ids="-".join)
def test_a_recipe_survives_json(route: tuple[str, str]) -> None:
    recipe = read_recipe(*route)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_what_the_release_says_otherwise_is_recorded() -> None:
    assert load_recipe("flm").evidence.release_steps == 1_500_000
    assert load_recipe("fmlm").evidence.release_steps == 1_000_000
    assert load_recipe("flm").evidence.release == "official release script"


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_departures_give_their_reason_in_a_sentence(route: tuple[str, str]) -> None:
    recipe = read_recipe(*route)
    locked = {key.lstrip("+") for key in recipe.overrides}
    for departure in recipe.departures:
        assert departure.reason[0].isupper()
        assert departure.reason.endswith(".")
        assert departure.reason.count(". ") == 0
        assert departure.key.lstrip("+") not in locked


def test_every_dataset_and_upstream_is_named_as_its_file() -> None:
    from dlbhpc.recipe import conf

    for group in ("dataset", "upstream"):
        for name in conf.names(group, CONF):
            assert conf.load(CONF / group / f"{name}.yaml")["name"] == name


# Refusals


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mlm", "unknown recipe 'mlm': did you mean .*mdlm"),
        ("duo-dcd", "did you mean .*duo_dcd"),
        ("zzz", "there are candi, duo, "),
        ("di4c", "names no teacher: choose duo_di4c or mdlm_di4c"),
        ("../flm", "unknown recipe"),
    ],
)
def test_an_unknown_recipe_is_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UnknownRecipe, match=message):
        load_recipe(name)


def test_rdlm_on_owt_is_refused_with_the_reason() -> None:
    with pytest.raises(UnknownRecipe, match=r"'owt' \(the release does not support it\)"):
        load_recipe("rdlm", "owt")


def test_an_unknown_dataset_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnknownRecipe, match="'c4': choose lm1b or owt"):
        load_recipe("flm", "c4")
    with pytest.raises(UnknownRecipe, match="'lm1b': choose pydoc"):
        load_recipe("reference_mdlm", "lm1b")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("load", [load_recipe, read_recipe])
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("recipe/flm.yaml", "summary: C", "sumary: C", r"flm.yaml: missing key 'summary'"),
        ("recipe/flm.yaml", "summary: C", "extra: 1\nsummary: C", r"flm.yaml: unknown key 'extra'"),
        ("recipe/flm.yaml", "summary: C", "name: x\nsummary: C", r"flm.yaml: unknown key 'name'"),
        ("recipe/flm.yaml", "  source:", "  sorce:", "missing key 'evidence.source'"),
        ("base/training.yaml", "warmup_steps: 2500\n", "", "missing key 'warmup_steps'"),
        ("base/training.yaml", "batch: 512", "batch: 0", "global_batch is 0"),
        ("base/training.yaml", "batch: 512", "batch: -8", "global_batch is -8"),
        ("base/training.yaml", "batch: 512", "batch: 5e2", "global_batch is"),
        ("base/training.yaml", "rate: 0.0003", "rate: 0.0", "learning_rate is 0.0"),
        ("base/training.yaml", "  lm1b:", "  lm2b:", "by_dataset names unknown datasets: lm2b"),
        ("base/flm.yaml", "    value: true\n", "", "steps.save_last' must have a value"),
        ("recipe/flm.yaml", "disclosures:", "departures: {algo: {value: duo, reason: No.}}\n"
         "disclosures:", "the departure 'algo' sets a locked key"),
        ("recipe/flm.yaml", "summary: C", "rounds: 3\nsteps_per_round: 2\nsummary: C",
         "3 rounds of 2 steps are not the 1000000 steps"),
        ("recipe/flm.yaml", "datasets:", "sets:", "missing key 'datasets'"),
        ("recipe/flm.yaml", "summary: C", "summary: [", "flm.yaml is not valid YAML"),
        ("upstream/flm.yaml", "commit:", "comit:", "missing key 'upstream.commit'"),
        ("dataset/lm1b.yaml", "length: 128", "length: long", "dataset.sequence_length is 'long'"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_its_key(
    conf: Path, load: object, file: str, old: str, new: str, message: str
) -> None:
    edit(conf / file, old, new)
    with pytest.raises(DlbhpcError, match=message):
        load("flm", conf_dir=conf)  # type: ignore[operator]


def test_a_base_that_does_not_exist_is_named(conf: Path) -> None:
    edit(conf / "recipe" / "flm.yaml", "lightning,", "lightening,")
    for load in (load_recipe, read_recipe):
        with pytest.raises(DlbhpcError, match="lightening"):
            load("flm", conf_dir=conf)


def test_listing_and_showing_import_nothing_heavy() -> None:
    code = (
        "import sys; from dlbhpc.recipe import list_recipes, read_recipe; list_recipes();"
        "read_recipe('duo', 'owt');"
        "print({'hydra', 'omegaconf', 'torch', 'submitit', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=CONF.parents[1]
    )
    assert done.stdout.strip() == "set()", done.stderr
