"""Tensors out of a checkpoint without running what it pickles.

A checkpoint is a ZIP archive around a pickle, and a pickle may name any function to call. Real
ones name classes of many libraries (configuration objects, tokenizers) beside their tensors. Here
the tensors and the plain containers are built, every other name becomes an inert placeholder that
remembers what it was given, and a name that is only there to do harm refuses the file.

Storages are mapped into memory, not read: what is not looked at costs nothing.
"""

from __future__ import annotations

import _compat_pickle
import ctypes
import os
import pickle
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.inputs.teacher.names import TeacherError

if TYPE_CHECKING:
    from torch import Tensor

_MADV_DONTNEED = 4

# What a checkpoint's tensors and plain containers are built with; none of it runs what it is given.
_BUILDERS = {
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("torch", "Size"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("_codecs", "encode"),
    *(("builtins", name) for name in ("set", "frozenset", "bytearray", "complex", "slice")),
    *(("builtins", name) for name in ("int", "float", "str", "bool", "list", "dict", "tuple")),
}

# No checkpoint names these for what it holds. They would not be called here either.
_HARMFUL_MODULES = frozenset(
    "os posix nt subprocess shutil sys socket ctypes importlib imp runpy pty code codeop pickle "
    "marshal multiprocessing asyncio threading signal webbrowser urllib http ftplib pip".split()
)
_HARMFUL_BUILTINS = frozenset("eval exec compile open __import__ input breakpoint".split())


class Inert:
    """Stands for an object that was not built. It does nothing, and remembers its state."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.state: Any = None

    def __new__(cls, *arguments: object, **keywords: object) -> Inert:
        made = super().__new__(cls)
        made.state = None
        return made

    def __call__(self, *arguments: object, **keywords: object) -> Inert:
        return Inert()

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, item: object) -> None:
        pass

    def extend(self, items: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __hash__(self) -> int:
        return id(self)


class HarmfulPickle(Exception):
    """A name that would run code."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # torch pickles with protocol 2, which has the names that Python 2 knew.
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        root = module.partition(".")[0]
        builtin = root in ("builtins", "io", "_io")
        if root in _HARMFUL_MODULES or (builtin and name in _HARMFUL_BUILTINS):
            raise HarmfulPickle(f"{module}.{name}")
        if (module, name) in _BUILDERS or _is_dtype(module, name):
            found = super().find_class(module, name)
            return _call_only(found) if isinstance(found, types.FunctionType) else found
        return Inert


def _call_only(function: types.FunctionType) -> Any:
    """Something that calls ``function``, and has no attribute to set.

    A pickle may set the attributes of whatever it names: of a function, for the whole process.
    The classes and dtypes among the builders refuse that themselves.
    """

    class CallOnly:
        __slots__ = ()

        def __call__(self, *arguments: object) -> Any:
            return function(*arguments)

    return CallOnly()


def _is_dtype(module: str, name: str) -> bool:
    import torch

    return module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)


def load_checkpoint(path: Path, *, trusted: bool = False) -> Mapping[str, Any]:
    """The top-level mapping of a checkpoint, its tensors mapped into memory from the file.

    ``trusted`` builds every object in the ordinary way, which runs whatever the file says.

    Raises:
        TeacherError: the file is missing, truncated, no checkpoint, or names what would run code.
    """
    import torch

    check_archive(path)
    # torch.load takes this for the pickle module, and adds the reading of storages to it.
    restricted = types.SimpleNamespace(__name__=__name__, Unpickler=_Unpickler)
    try:
        content = torch.load(
            str(path),
            map_location="cpu",
            mmap=True,
            weights_only=False,
            pickle_module=None if trusted else restricted,
        )
    except HarmfulPickle as error:
        raise TeacherError(
            f"the checkpoint {path} names {error}, which would run code on loading: nothing of it "
            "was run; take another file, or ask whoever made this one"
        ) from None
    except Exception as error:  # a broken pickle raises nearly anything
        raise TeacherError(f"the checkpoint {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise TeacherError(f"the checkpoint {path} holds no mapping at its top level")
    return content


def check_archive(path: Path) -> None:
    """Refuse a file that is no whole checkpoint archive. Raises TeacherError."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        # Two readers may find two directories in one file: that of torch decides what it loads.
        read = torch._C.PyTorchFileReader(str(path)).get_all_records()
    except FileNotFoundError:
        raise TeacherError(f"there is no checkpoint {path}") from None
    except RuntimeError as error:  # of torch's own reader
        raise TeacherError(f"{path} is no torch checkpoint: {error}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise TeacherError(
            f"the checkpoint {path} is truncated, or is none that torch.save wrote in this decade "
            f"({error}): copy it again"
        ) from None
    names = [entry.filename for entry in entries]
    folder = names[0].partition("/")[0] if names else ""
    if sorted(names) != sorted(f"{folder}/{name}" for name in read):
        raise TeacherError(f"{path} is no torch checkpoint: it is not one plain archive")
    if "data.pkl" not in read or "constants.pkl" in read:
        raise TeacherError(f"{path} is no torch checkpoint: it holds no single data.pkl")
    # Mapped into memory, the packed bytes themselves would be taken for the tensors.
    if packed := [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]:
        raise TeacherError(
            f"the checkpoint {path} was packed anew ({packed[0]}): take the original"
        )


def check_content(path: Path) -> None:
    """Refuse an archive whose bytes are not those that were written: reads all of it.

    Tensors that are mapped into memory are never compared with the archive's checksums.
    """
    with zipfile.ZipFile(path) as archive:
        try:
            torn = archive.testzip()
        except (OSError, zipfile.BadZipFile) as error:
            raise TeacherError(f"the checkpoint {path} is damaged ({error})") from None
    if torn is not None:
        raise TeacherError(f"the checkpoint {path} is damaged: {torn} differs from its checksum")


def state_of(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The tensors of ``content["state_dict"]`` by name.

    Raises TeacherError when there is no such mapping, or something in it is no tensor.
    """
    import torch

    state = content.get("state_dict")
    if not isinstance(state, dict):
        raise TeacherError(f"the checkpoint {path} holds no state_dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise TeacherError(f"the checkpoint {path}: {name!r} of its state_dict is no tensor")
    return dict(state)


def release_mapped(tensor: Tensor) -> None:
    """Give back the memory of a tensor that was mapped from a file; it is read again when needed.

    Only for tensors that :func:`load_checkpoint` did not trust: their mapping is private and never
    written to, so nothing is lost. Ordinary memory would be emptied. A tensor that does not lie in
    one piece is left: it does not end where its size says.
    """
    if not tensor.is_contiguous():
        return
    page = os.sysconf("SC_PAGE_SIZE")
    start = -(-tensor.data_ptr() // page) * page
    size = tensor.data_ptr() + tensor.nbytes - start
    if size >= page:
        whole = size // page * page
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), _MADV_DONTNEED)
