"""Running an upstream's main program inside an adapter, as if Python had been given its file."""

from __future__ import annotations

import sys
from pathlib import Path


def checkout_file(name: str) -> Path:
    """A file of the checkout that the process was started in.

    Raises SystemExit, with a sentence, where it is not there.
    """
    path = Path.cwd() / name
    if not path.is_file():
        raise SystemExit(
            f"{sys.argv[0]} runs {name} of the folder it is started in, and {Path.cwd()} has none: "
            "start it in the upstream's checkout"
        )
    return path


def lead_search(*folders: Path) -> None:
    """Let imports look into these folders first, and no longer beside the adapter."""
    own = Path(__file__).parent
    sys.path[:] = [
        *(str(folder) for folder in folders),
        *(entry for entry in sys.path if not entry or Path(entry) != own),
    ]


def run_main(script: Path) -> None:
    """Execute ``script`` as ``__main__``.

    In the module ``__main__``, since Hydra looks for the configuration beside the file of a main
    function of that module only. ``sys.argv[0]`` stays the adapter, which is what Lightning starts
    for the other ranks of a machine.
    """
    code = compile(script.read_bytes(), str(script), "exec")
    exec(code, sys.modules["__main__"].__dict__)
