"""Entry point: ``python -u main.py mode=train data=pydoc ...`` (see configs/config.yaml)."""

from __future__ import annotations

import sys
from pathlib import Path

# A script's own folder comes first on sys.path, where `import strategy` would find ours. Put the
# folder that holds the package there instead: it also makes `dlbhpc` importable uninstalled.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    # torch and Lightning take seconds to import: not for `--cfg job`, which never comes here.
    from dlbhpc.reference.train import train

    if config.mode != "train":
        raise SystemExit(f"mode={config.mode} is not known here: the reference has mode=train only")
    train(config)


if __name__ == "__main__":
    main()
