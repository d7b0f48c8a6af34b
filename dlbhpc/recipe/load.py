"""From dlbhpc/conf to a frozen, typed recipe."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import require_positive
from dlbhpc.layout import CONF
from dlbhpc.recipe import conf
from dlbhpc.recipe.model import Dataset, Recipe
from dlbhpc.records import from_plain

_POSITIVE = ("global_batch", "learning_rate", "per_device_batch", "gpus_per_node", "nodes", "seed")
_POSITIVE_OR_NULL = ("steps", "milestone_every", "rounds", "steps_per_round", "selected_step")
_INCOMPLETE = {"di4c": ("duo_di4c", "mdlm_di4c")}
"""Names that stand for several recipes, one per teacher."""


class UnknownRecipe(DlbhpcError):
    """There is no recipe of this name, or it does not train on this dataset."""


def load_recipe(name: str, dataset: str | None = None, conf_dir: Path = CONF) -> Recipe:
    """The recipe ``name`` on ``dataset`` (its first by default), composed by Hydra.

    Raises :class:`UnknownRecipe`, or :class:`DlbhpcError` for a damaged file.
    """
    dataset = _choose_dataset(name, dataset, conf_dir)
    return _assemble(conf.compose(name, dataset, conf_dir), name, dataset, conf_dir)


def read_recipe(name: str, dataset: str | None = None, conf_dir: Path = CONF) -> Recipe:
    """The same recipe without importing Hydra, for commands that must start fast."""
    dataset = _choose_dataset(name, dataset, conf_dir)
    return _assemble(conf.read(name, dataset, conf_dir), name, dataset, conf_dir)


def list_recipes(conf_dir: Path = CONF) -> list[Recipe]:
    """Every recipe on its default dataset, by name, without importing Hydra."""
    return [read_recipe(name, conf_dir=conf_dir) for name in conf.names("recipe", conf_dir)]


def list_datasets(conf_dir: Path = CONF) -> list[Dataset]:
    """Every dataset, by name."""
    paths = [conf_dir / "dataset" / f"{name}.yaml" for name in conf.names("dataset", conf_dir)]
    return [from_plain(Dataset, conf.load(path), str(path)) for path in paths]


def _choose_dataset(name: str, dataset: str | None, conf_dir: Path) -> str:
    known = conf.names("recipe", conf_dir)
    if name not in known:
        raise UnknownRecipe(_unknown_recipe(name, known))
    path = conf_dir / "recipe" / f"{name}.yaml"
    body = conf.load(path)
    valid = body.get("datasets")
    if not isinstance(valid, list) or not valid:
        raise DlbhpcError(f"{path}: missing key 'datasets' (a list of at least one)")
    if dataset is None:
        return str(valid[0])
    if dataset not in valid:
        refused = body.get("refused_datasets", {})
        why = f" ({refused[dataset]})" if dataset in refused else ""
        raise UnknownRecipe(
            f"{name} does not train on {dataset!r}{why}: choose {' or '.join(valid)}"
        )
    return dataset


def _unknown_recipe(name: str, known: list[str]) -> str:
    if name in _INCOMPLETE:
        return f"{name!r} names no teacher: choose {' or '.join(_INCOMPLETE[name])}"
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return f"unknown recipe {name!r}: {hint}"


def _assemble(composed: conf.Data, name: str, dataset: str, conf_dir: Path) -> Recipe:
    """The recipe of composed data, in which what differs by dataset still stands apart."""
    path = conf_dir / "recipe" / f"{name}.yaml"
    data: dict[str, Any] = dict(composed["recipe"])
    by_dataset = data.pop("by_dataset", {})
    if unknown := sorted(set(by_dataset) - set(conf.names("dataset", conf_dir))):
        raise DlbhpcError(f"{path}: by_dataset names unknown datasets: {', '.join(unknown)}")
    data = conf.merge(data, by_dataset.get(dataset, {}))
    if given := sorted({"name", "dataset", "trial"} & set(data)):
        raise DlbhpcError(f"{path}: unknown key {given[0]!r}")
    data["departures"] = [
        *_entries(data.get("departures"), "override", path),
        *_entries(data.pop("environment_departures", {}), "environment", path),
    ]
    disclosures = data.get("disclosures") or {}
    if not isinstance(disclosures, dict):
        raise DlbhpcError(f"{path}: disclosures must be a mapping of subjects")
    data["disclosures"] = [
        {"subject": subject, "difference": text} for subject, text in disclosures.items()
    ]
    recipe = from_plain(Recipe, {"name": name, "dataset": composed["dataset"], **data}, str(path))
    _check(recipe, path)
    return recipe


def _entries(table: Any, kind: str, path: Path) -> list[dict[str, Any]]:
    table = table or {}
    if not isinstance(table, dict):
        raise DlbhpcError(f"{path}: departures must be a mapping of keys")
    for key, entry in table.items():
        if not isinstance(entry, dict) or set(entry) != {"value", "reason"}:
            raise DlbhpcError(f"{path}: departure {key!r} must have a value and a reason")
    return [{"key": key, "kind": kind, **entry} for key, entry in table.items()]


def _check(recipe: Recipe, path: Path) -> None:
    for key in _POSITIVE + _POSITIVE_OR_NULL:
        value = getattr(recipe, key)
        if value is None and key in _POSITIVE_OR_NULL:
            continue
        if isinstance(value, float):
            if not 0 < value < math.inf:
                raise DlbhpcError(f"{path}: {key} is {value}: it must be a number above zero")
        else:
            require_positive(f"{path}: {key}", value)
    for key in ("warmup_steps", "num_workers"):
        if getattr(recipe, key) < 0:
            raise DlbhpcError(f"{path}: {key} is {getattr(recipe, key)}: it must not be negative")
    for key in ("sequence_length", "base_vocab"):
        require_positive(f"dataset {recipe.dataset.name}: {key}", getattr(recipe.dataset, key))
    if (
        recipe.rounds
        and recipe.steps_per_round
        and recipe.rounds * recipe.steps_per_round != recipe.steps
    ):
        raise DlbhpcError(
            f"{path}: {recipe.rounds} rounds of {recipe.steps_per_round} steps are not the "
            f"{recipe.steps} steps of the recipe"
        )
    locked = {key.lstrip("+") for key in recipe.overrides}
    for departure in recipe.departures:
        if departure.key.lstrip("+") in locked or departure.key in recipe.environment:
            raise DlbhpcError(f"{path}: the departure {departure.key!r} sets a locked key")
