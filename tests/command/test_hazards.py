"""The hazards of the upstreams' own code, one by one, and what corrects each.

The numbers are those of the project's list of hazards. What is corrected by something that we
render is checked here, under the hazard's name; for what is corrected elsewhere, the tests that
show it are named, and they must exist.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.images.spec import load_image
from dlbhpc.layout import ADAPTERS, CHECKOUT
from dlbhpc.recipe import list_recipes, read_recipe

ROOT = Path("/project")
ROUTES = [
    (recipe.name, dataset)
    for recipe in list_recipes()
    for dataset in recipe.datasets
    if recipe.upstream.commit
]
MDLM_FAMILY = ("mdlm", "duo", "duo_dcd", "candi", "flm", "fmlm")
SDTT_FAMILY = ("mdlm_sdtt", "duo_di4c", "mdlm_di4c")
LIGHTNING = (*MDLM_FAMILY, *SDTT_FAMILY)

# hazard: name, the recipes that it concerns, the departures (key, value) that correct it
DEPARTURES: dict[int, tuple[str, tuple[str, ...], dict[str, object]]] = {
    5: (
        "a resume in the middle of an epoch repeats data and skips data",
        LIGHTNING,
        {
            "+callbacks.dlbhpc_steps._target_": "dlbhpc.inside.step_callback.StepCallback",
        },
    ),
    9: (
        "last.ckpt of flm is that of the last validation",
        ("flm", "fmlm"),
        {
            "callbacks.checkpoint_every_n_steps.save_last": True,
            "callbacks.checkpoint_monitor.save_last": False,
        },
    ),
    10: (
        "rdlm lacks the process settings of its README",
        ("rdlm",),
        {"sde.rho_scale": 1.14, "sde.step_thr": 0.38},
    ),
    13: (
        "the tokenizer of gpt2-large is fetched in every model's constructor",
        MDLM_FAMILY,
        {
            "eval.gen_ppl_eval_model_name_or_path": f"{ROOT}/data/raw/huggingface/hub/models--gpt2/"
            "snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e"
        },
    ),
    14: (
        "flm loads the weights of gpt2-large at the first validation",
        ("flm", "fmlm"),
        {"eval.compute_generative_perplexity": False},
    ),
    15: (
        "sdtt samples and scores with gpt2-large before the first step",
        ("mdlm_sdtt",),
        {"eval.valid.n_samples": 0},
    ),
    17: (
        # flm tells torch to, and newer versions of Lightning tell it otherwise.
        "newer versions of torch cannot load the checkpoints of five upstreams",
        ("flm", "fmlm", "mdlm", "duo", "duo_dcd", "candi", "rdlm"),
        {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    ),
    27: (
        "newer versions of Lightning stage a checkpoint on another file system",
        ("flm", "fmlm", "candi"),
        {"TMPDIR": "OUTPUT/tmp"},
    ),
    32: (
        "the composed configuration depends on the cores of the machine",
        LIGHTNING,
        {"loader.num_workers": 8},
    ),
    39: (
        "each validation generates samples that nobody asked for",
        MDLM_FAMILY,
        {"eval.generate_samples": False},
    ),
}


@functools.cache
def launch_of(recipe: str, dataset: str | None = None, trial: bool = False) -> Launch:
    sizes: dict[str, int] | None = {} if trial else None
    return plan_launch(Request(recipe, dataset, root=ROOT, trial=sizes), load=read_recipe)


@pytest.mark.parametrize("number", DEPARTURES, ids=lambda number: DEPARTURES[number][0])
def test_a_departure_corrects(number: int) -> None:
    _, concerned, corrections = DEPARTURES[number]
    for recipe, dataset in ROUTES:
        launch = launch_of(recipe, dataset)
        departures = {departure.key: departure for departure in launch.departures}
        for key, value in corrections.items():
            assert (key in departures) == (recipe in concerned), (recipe, key)
            if recipe in concerned:
                expected = str(value).replace("OUTPUT", str(launch.output.folder))
                departure = departures[key]
                assert str(departure.value) == expected
                assert departure.reason.endswith(".")
                rendered = {word.partition("=")[0] for word in launch.argv}
                assert key in (launch.environment if departure.kind == "environment" else rendered)


def a_resume_is_asked_for_only_when_there_is_a_step() -> None:
    """8: fmlm takes the flag alone for a resumed run, and leaves its student uninitialised."""
    from dlbhpc.command import attempt_argv

    argv = attempt_argv(launch_of("fmlm").argv, resume=False)
    assert [word for word in argv if "resume_from_ckpt" in word] == [
        "checkpointing.resume_from_ckpt=false"
    ]


def an_adapter_starts_what_the_upstreams_main_cannot() -> None:
    """11, 12, 22: duo's signatures, the EMA of its distillation, di4c's student from the hub."""
    adapters = {
        "duo": "train_duo",
        "duo_dcd": "train_duo_dcd",
        "duo_di4c": "train_di4c",
        "mdlm_di4c": "train_di4c",
    }
    for recipe, _ in ROUTES:
        launch = launch_of(recipe)
        if recipe in adapters:
            assert launch.entrypoint == ADAPTERS / f"{adapters[recipe]}.py"
        else:
            assert launch.entrypoint == launch.source / launch.recipe.upstream.entrypoint


def di4c_has_one_sample_per_device() -> None:
    """22: its consistency loss compares the time of a single sample."""
    for recipe in ("duo_di4c", "mdlm_di4c"):
        assert launch_of(recipe).geometry.per_device_batch == 1
        with pytest.raises(DlbhpcError, match="single sample"):
            plan_launch(Request(recipe, root=ROOT, per_device_batch=2))


def the_integral_of_duo_is_named_by_its_tokenizer_and_not_by_a_path() -> None:
    """16: the upstream builds the file's name from a path."""
    for dataset, name in (("lm1b", "bert-base-uncased"), ("owt", "gpt2")):
        for trial in (False, True):
            path = f"{ROOT}/upstreams/duo/integral/{name}.pkl"
            duo, dcd = (launch_of(recipe, dataset, trial).argv for recipe in ("duo", "duo_dcd"))
            assert f"algo.curriculum.integral_cache_path={path}" in duo
            assert f"algo.integral_cache_path={path}" in dcd
            assert f"+algo.curriculum.integral_cache_path={path}" in dcd
    (departure,) = (d for d in launch_of("duo").departures if "integral" in d.key)
    assert departure.reason.endswith(".")


def a_trial_validates_within_an_epoch_of_its_small_data() -> None:
    """20: an interval beyond the epoch is refused before training."""
    for recipe in MDLM_FAMILY:
        assert "trainer.val_check_interval=10" in launch_of(recipe, trial=True).argv
    assert "eval_every=10" in launch_of("mdlm_sdtt", trial=True).argv


def a_hub_is_never_asked() -> None:
    """13, 14, 15, 22: whatever still goes to the network fails at once, and by name."""
    for recipe, dataset in ROUTES:
        environment = launch_of(recipe, dataset).environment
        assert (environment["HF_HUB_OFFLINE"], environment["TRANSFORMERS_OFFLINE"]) == ("1", "1")


def the_record_of_the_configuration_has_a_name_of_its_own() -> None:
    """31: two upstreams overwrite config.yaml in the run's folder."""
    output = launch_of("mdlm_sdtt").output
    assert output.composed_config.parent == output.folder
    assert output.composed_config.name == "composed_config.yaml"


def an_upstream_is_imported_from_its_checkout() -> None:
    """34, 35: nothing is installed, and the import root is named instead of guessed."""
    roots = {"sdtt": "src", "di4c": "sdtt/src"}
    for recipe, _ in ROUTES:
        launch = launch_of(recipe)
        first = Path(launch.environment["PYTHONPATH"].split(":")[0])
        assert first == launch.source / roots.get(launch.recipe.upstream.name, ".")
        assert launch.environment["PYTHONDONTWRITEBYTECODE"] == "1"


def an_image_holds_what_the_upstream_needs_and_does_not_declare() -> None:
    """24, 25: rdlm fails without them with exit status 0; sdtt and di4c import them at once."""
    undeclared = {
        "rdlm": {"matplotlib", "hydra-joblib-launcher"},
        "sdtt": {"tensorboard", "mauve-text", "torchdata", "nltk"},
        "di4c": {"tensorboard", "mauve-text", "torchdata", "nltk"},
    }
    for name, packages in undeclared.items():
        assert packages <= {package.name for package in load_image(name).packages}


def rdlm_trains_on_one_node() -> None:
    """36: it starts its processes itself, and would still divide the accumulation by nodes."""
    with pytest.raises(DlbhpcError, match="--nodes 2 is too much for rdlm"):
        plan_launch(Request("rdlm", root=ROOT, nodes=2))


CHECKS: dict[Callable[[], None], tuple[int, ...]] = {
    a_resume_is_asked_for_only_when_there_is_a_step: (8,),
    an_adapter_starts_what_the_upstreams_main_cannot: (11, 12, 22),
    di4c_has_one_sample_per_device: (22,),
    the_integral_of_duo_is_named_by_its_tokenizer_and_not_by_a_path: (16,),
    a_trial_validates_within_an_epoch_of_its_small_data: (20,),
    a_hub_is_never_asked: (13, 14, 15, 22),
    the_record_of_the_configuration_has_a_name_of_its_own: (31,),
    an_upstream_is_imported_from_its_checkout: (34, 35),
    an_image_holds_what_the_upstream_needs_and_does_not_declare: (24, 25),
    rdlm_trains_on_one_node: (36,),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_is_rendered_corrects(check: Callable[[], None]) -> None:
    check()


ELSEWHERE: dict[int, tuple[str, ...]] = {
    # Exit status 0 proves nothing, nor does a file's name.
    1: (
        "tests/run/test_attempt.py::test_success_before_the_last_step_is_not_believed",
        "tests/inside/test_stop.py::test_lightning_does_not_get_the_signals",
    ),
    2: (
        "tests/run/test_completion.py::test_the_last_step_never_stands_in_for_a_selected_one",
        "tests/run/test_completion.py::test_a_name_that_claims_the_last_step_proves_nothing",
    ),
    3: (
        "tests/run/test_attempt.py::test_success_before_the_last_step_is_not_believed",
        "tests/inside/test_snapshots.py::"
        "test_hazard_3_its_exit_status_0_on_a_failure_is_not_believed",
    ),
    # As many tasks as devices, and all devices visible to each.
    4: (
        "tests/scheduler/test_sbatch.py::test_every_option_of_a_two_node_run",
        "tests/inside/test_saving.py::test_another_world_size_is_refused_by_name",
    ),
    5: ("tests/inside/test_resume.py::test_hazard",),
    6: ("tests/inside/test_resume.py::test_hazard",),
    7: ("tests/inside/test_resume.py::test_hazard",),
    8: ("tests/run/test_attempt.py::test_a_fresh_run_starts_at_step_0_and_does_not_resume",),
    # Caches are described in words that old versions of datasets know.
    18: (
        "tests/data/test_bridge.py::test_old_datasets_can_read_its_description",
        "tests/data/test_bridge.py::"
        "test_data_described_in_the_words_of_new_datasets_is_bridged_for_old_ones",
    ),
    19: ("tests/data/test_prepare.py::test_a_tokenizer_without_its_configuration_is_not_taken",),
    21: (
        "tests/upstream/test_routes.py::"
        "test_the_options_of_fmlm_do_not_exist_in_the_neighbouring_commit",
    ),
    23: ("tests/scheduler/test_sbatch.py::test_gpus_are_never_bound_to_tasks",),
    # The upstreams' own files may be torn: step directories are there whole or not at all.
    26: (
        "tests/steps/test_kill.py::test_no_published_step_is_lost_to_sigkill",
        "tests/run/test_attempt.py::test_a_torn_newest_step_is_told_and_the_one_before_is_used",
    ),
    28: (
        "tests/scheduler/test_submission.py::test_starting_afresh_moves_saves_and_keeps_the_fence",
    ),
    29: (
        "tests/inside/test_snapshots.py::"
        "test_hazard_29_a_torn_snapshot_is_not_published_and_does_not_keep_it_from_starting",
        "tests/inside/test_snapshots.py::"
        "test_hazard_29_a_kill_before_the_final_checkpoint_loses_nothing",
    ),
    30: ("tests/inside/test_stop.py::test_lightning_does_not_get_the_signals",),
    33: (
        "tests/upstream/test_composed.py::"
        "test_a_line_that_an_import_prints_is_no_part_of_the_configuration",
    ),
    34: ("tests/inputs/test_source.py::test_bytecode_does_not_make_it_dirty",),
    # Of the surrounding job an image sees what is named, and Slurm's own variables are.
    37: ("tests/images/test_task.py::test_variables_enter_by_name_only",),
    38: (
        "tests/inputs/test_checkpoint.py::test_nothing_that_a_checkpoint_pickles_is_executed",
        "tests/inputs/teacher/test_loading.py::test_foreign_objects_become_inert",
    ),
}


def test_every_hazard_has_its_correction() -> None:
    shown = {
        *DEPARTURES,
        *ELSEWHERE,
        *(number for numbers in CHECKS.values() for number in numbers),
    }
    assert shown == set(range(1, 40))


@pytest.mark.parametrize("test", sorted({test for tests in ELSEWHERE.values() for test in tests}))
def test_the_named_tests_exist(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
