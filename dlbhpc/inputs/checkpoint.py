"""Read plain facts out of a torch checkpoint without torch, and without running what it pickles.

A checkpoint file is a ZIP archive whose ``data.pkl`` names the tensors stored beside it. A pickle
may name any function to call; here every name but the plain containers becomes an inert
placeholder, so that nothing of the file is ever executed and no tensor is loaded.
"""

from __future__ import annotations

import collections
import pickle
import zipfile
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError


class Placeholder:
    """Stands for an object that was not built: it accepts anything, and does nothing."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def append(self, item: object) -> None:
        pass

    def extend(self, items: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __hash__(self) -> int:
        return id(self)


class _FactsUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return Placeholder

    def persistent_load(self, pid: object) -> Any:
        return Placeholder()


def read_facts(path: Path) -> dict[str, Any]:
    """The top-level mapping of a checkpoint, every tensor and foreign object a Placeholder.

    Raises DlbhpcError when the file is missing, truncated, or no torch checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise DlbhpcError(f"{path} is no torch checkpoint: it holds no single data.pkl")
            with archive.open(names[0]) as file:
                value = _FactsUnpickler(file).load()
    except FileNotFoundError as error:
        raise DlbhpcError(f"there is no checkpoint {path}") from error
    except DlbhpcError:
        raise
    except Exception as error:  # a broken pickle raises nearly anything
        raise DlbhpcError(f"the checkpoint {path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DlbhpcError(f"the checkpoint {path} holds no mapping at its top level")
    return value


def checkpoint_step(path: Path, key: str = "global_step") -> int:
    """The optimizer step inside a checkpoint: what its name says proves nothing."""
    step = read_facts(path).get(key)
    if not isinstance(step, int) or isinstance(step, bool):
        raise DlbhpcError(f"the checkpoint {path} names no step: {key} is {step!r}")
    return step
