"""Reading dlbhpc/conf: composed by Hydra, or read directly where a command must start fast.

Both give the same data. The direct reader knows the few constructs that our files use: a
``defaults`` list of ``/group@package: option(s)`` entries and ``_self_``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError

Data = dict[str, Any]


def names(group: str, conf: Path) -> list[str]:
    """The options of a config group, sorted."""
    return sorted(path.stem for path in (conf / group).glob("*.yaml"))


def compose(recipe: str, dataset: str, conf: Path) -> Data:
    """``{"recipe": ..., "dataset": ...}`` as Hydra composes them."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    overrides = [f"recipe={recipe}", f"dataset={dataset}"]
    try:
        with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
            composed = hydra_compose("config", overrides)
        data = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise DlbhpcError(f"{conf / 'recipe' / recipe}.yaml cannot be composed: {error}") from error
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def read(recipe: str, dataset: str, conf: Path) -> Data:
    """The same as :func:`compose`, without importing Hydra."""
    path = conf / "recipe" / f"{recipe}.yaml"
    body = load(path)
    merged: Data = {}
    for entry in body.pop("defaults", ["_self_"]):
        if entry == "_self_":
            merged = merge(merged, body)
            continue
        ((selector, options),) = entry.items()
        group, _, package = selector.lstrip("/").partition("@")
        for option in [options] if isinstance(options, str) else options:
            part = load(conf / group / f"{option}.yaml")
            merged = merge(merged, part if package == "_here_" else {package: part})
    return {"recipe": merged, "dataset": load(conf / "dataset" / f"{dataset}.yaml")}


def load(path: Path) -> Data:
    """One YAML file that holds a mapping. Raises :class:`DlbhpcError`."""
    import yaml

    # libyaml's parser is several times faster; PyYAML can be built without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError) as error:
        raise DlbhpcError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise DlbhpcError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise DlbhpcError(f"{path} does not hold a mapping")
    return data


def merge(below: Data, above: Data) -> Data:
    """``above`` over ``below``, mapping by mapping; anything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        merged[key] = value
    return merged
