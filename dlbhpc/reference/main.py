"""Entry point: ``python -u main.py mode=train data=pydoc ...`` (see configs/config.yaml)."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

# A script's own folder is first on sys.path; the one that holds the package belongs there.
sys.path[0] = str(Path(__file__).resolve().parents[2])


@hydra.main(version_base="1.3", config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    """Train as the configuration says."""
    # torch and Lightning take seconds to import; `--cfg job` does not come here.
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.exit_status import USAGE
    from dlbhpc.reference.train import train

    try:
        train(config)
    except DlbhpcError as error:
        print(f"ERROR: {error}", file=sys.stderr, flush=True)
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
