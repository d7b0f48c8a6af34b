"""A process that composes commands with one upstream's own configuration, through real Hydra.

It reads a :class:`Task` as JSON from standard input and prints, for each command, null or what is
wrong with it. None of the upstream's code runs: its resolvers have stand-ins, which say nothing
about values but let every interpolation be followed to a key that must exist.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from dlbhpc.records import from_plain


@dataclass(frozen=True)
class Task:
    """Commands (their overrides) for a configuration, as ``configs`` (a folder) and ``config``."""

    configs: str
    config: str
    resolvers: tuple[str, ...]
    launcher: str | None
    commands: tuple[tuple[str, ...], ...]


def main() -> None:
    task = from_plain(Task, json.load(sys.stdin), "the task")
    stand_in(task)
    json.dump([error_of(task, words) for words in task.commands], sys.stdout)


def stand_in(task: Task) -> None:
    """Register what the upstream's own code would have registered."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    for name in task.resolvers:
        OmegaConf.register_new_resolver(name, lambda *_: 1, replace=True)
    if task.launcher:
        # The plugin may not be installed here; only its name is composed.
        ConfigStore.instance().store(
            group="hydra/launcher", name=task.launcher, node={"_target_": "absent", "n_jobs": 1}
        )


def error_of(task: Task, words: tuple[str, ...]) -> str | None:
    """What is wrong with a command, None where it composes and every value resolves."""
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(task.configs, version_base=None):
            composed = compose(task.config, list(words), return_hydra_config=True)
            composed.hydra.runtime.cwd = "/"
            HydraConfig.instance().set_config(composed)
            with open_dict(composed):
                del composed["hydra"]
            OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        return str(error).strip().splitlines()[0]
    return None


if __name__ == "__main__":
    main()
