"""Tensors come out of a checkpoint, and nothing that it pickles is run."""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.inputs.teacher import loading
from dlbhpc.inputs.teacher.family import check_family, family_of
from dlbhpc.inputs.teacher.inspection import inspect
from dlbhpc.inputs.teacher.loading import Inert, load_checkpoint, state_of
from dlbhpc.inputs.teacher.names import TeacherError
from tests.inputs.teacher.conftest import hyper_parameters, make_state, save, torch


class Calls:
    """Unpickled in the ordinary way, it calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_tensors_are_those_that_were_saved(tmp_path: Path) -> None:
    state = make_state()
    state["blocks.0.norm1.weight"] = torch.nn.Parameter(state["blocks.0.norm1.weight"].bfloat16())
    path = save(tmp_path / "a.ckpt", state, hyper_parameters=hyper_parameters(algo={"name": "duo"}))
    loaded = state_of(load_checkpoint(path), path)
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        f"backbone.{name}": tensor.dtype for name, tensor in state.items()
    }
    assert all(torch.equal(loaded[f"backbone.{name}"], tensor) for name, tensor in state.items())


def test_foreign_objects_become_inert(tmp_path: Path) -> None:
    import numpy

    more = {
        "hyper_parameters": hyper_parameters(algo={"name": "duo"}),
        "array": numpy.arange(3),
        "odd": [Path("/x"), Calls(str.upper, "x"), {1, 2}, slice(1, 2), torch.Size([1])],
    }
    content = load_checkpoint(save(tmp_path / "a.ckpt", make_state(), **more))
    assert isinstance(content["hyper_parameters"]["config"], Inert)
    assert isinstance(content["array"], Inert)
    assert content["global_step"] == 5
    assert content["odd"][2:] == [{1, 2}, slice(1, 2), torch.Size([1])]


HARM = [
    (os.system, "touch {trap}"),
    (os.mkdir, "{trap}"),
    (subprocess.check_call, ["mkdir", "{trap}"]),
    (eval, "__import__('os').mkdir('{trap}')"),
    (exec, "import os; os.mkdir('{trap}')"),
    (open, "{trap}", "w"),
    (pickle.loads, b"cos\nmkdir\n(V{trap}\ntR."),
]


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm[0].__name__)
@pytest.mark.parametrize("place", ["state_dict", "hyper_parameters"])
def test_a_pickle_that_would_run_code_is_refused_by_name_and_runs_nothing(
    tmp_path: Path, harm: tuple[Any, ...], place: str
) -> None:
    trap = tmp_path / "trap"

    def armed(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.replace(b"{trap}", str(trap).encode())
        if isinstance(value, list):
            return [armed(item) for item in value]
        return value.replace("{trap}", str(trap))

    function, *arguments = harm
    path = tmp_path / "evil.ckpt"
    evil = Calls(function, *map(armed, arguments))
    torch.save({"state_dict": make_state(), place: evil}, path)
    with pytest.raises(TeacherError, match=rf"evil.ckpt names .*{function.__name__}, which would"):
        load_checkpoint(path)
    assert not trap.exists()
    load_checkpoint(path, trusted=True)
    assert trap.exists(), "loaded in the ordinary way, the file does harm"


def test_a_call_of_what_is_not_known_is_not_made(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    path = save(tmp_path / "a.ckpt", make_state(), odd=Calls(Path.mkdir, trap))
    load_checkpoint(path)
    assert not trap.exists()


def with_pickle(path: Path, data: bytes) -> Path:
    """A checkpoint whose pickle is ``data``."""
    whole = save(path.with_name("whole.ckpt"), make_state())
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, data if name.endswith("/data.pkl") else old.read(name))
    return path


def attributes_of(module: str, name: str) -> list[tuple[str, Any]]:
    found = getattr(importlib.import_module(module), name)
    own = [(key, value) for key, value in vars(found).items()] if hasattr(found, "__dict__") else []
    return own + [(key, getattr(found, key, None)) for key in ("__defaults__", "__kwdefaults__")]


@pytest.mark.parametrize(("module", "name"), sorted({*loading._BUILDERS, ("torch", "float32")}))
@pytest.mark.parametrize("slots", [False, True], ids=["attributes", "slots"])
def test_a_pickle_cannot_change_what_checkpoints_are_built_with(
    tmp_path: Path, module: str, name: str, slots: bool
) -> None:
    """BUILD sets attributes of whatever lies on the stack, a function of torch's included."""
    named = f"c{module}\n{name}\n".encode()
    changes = b"}(V__defaults__\nNVplanted\nI1\nu"
    state = b"N" + changes + b"\x86" if slots else changes
    path = with_pickle(tmp_path / "a.ckpt", b"\x80\x02}Vx\n" + named + state + b"bs.")
    before = attributes_of(module, name)
    with pytest.raises(TeacherError, match=r"a\.ckpt cannot be read"):
        load_checkpoint(path)
    assert attributes_of(module, name) == before


def test_only_memory_that_a_tensor_fills_is_released() -> None:
    """One value for many: behind it lies what is not the tensor's."""
    memory = torch.ones(1 << 16)
    loading.release_mapped(memory[:1].expand(1 << 16))
    assert memory.all()


@pytest.mark.parametrize("cut", [0, 10, 1000, -1, -100])
def test_a_truncated_checkpoint_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path / "a.ckpt", make_state())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TeacherError, match=r"a\.ckpt is truncated, or is none that torch"):
        load_checkpoint(path)


def test_a_missing_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"there is no checkpoint .*a\.ckpt"):
        load_checkpoint(tmp_path / "a.ckpt")


def test_another_archive_is_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(TeacherError, match="is no torch checkpoint"):
        load_checkpoint(tmp_path / "a.ckpt")


def test_a_compiled_program_is_not_loaded(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
        archive.writestr("a/constants.pkl", pickle.dumps(()))
    with pytest.raises(TeacherError, match="is no torch checkpoint"):
        load_checkpoint(tmp_path / "a.ckpt")


def directory(data: bytes) -> tuple[int, int, int]:
    """Where the end record of an archive is, and the size and the place of its directory."""
    end = data.rindex(b"PK\5\6")
    return end, *struct.unpack("<II", data[end + 12 : end + 20])


def test_a_compiled_program_behind_the_directory_of_a_checkpoint_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds the directory before the end record, torch the one that the end record names."""
    program, harmless, both = tmp_path / "p.pt", tmp_path / "h.zip", tmp_path / "a.ckpt"
    names = {program: ["x/data.pkl", "x/version", "x/constants.pkl"]}
    names[harmless] = ["x/data.pkl", "x/version", "x/harmlessa.pkl"]
    for path in (program, harmless):
        with zipfile.ZipFile(path, "w") as archive:
            for name in names[path]:
                archive.writestr(name, b"3" if name.endswith("version") else pickle.dumps({}))
    hidden, shown = program.read_bytes(), harmless.read_bytes()
    end, _, place = directory(hidden)
    own_end = directory(shown)[0]
    last = bytearray(shown[own_end:])
    last[16:20] = struct.pack("<I", place)
    both.write_bytes(hidden[:end] + shown[:own_end] + last)
    with zipfile.ZipFile(both) as archive:
        assert archive.namelist() == names[harmless]

    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("the program was loaded"))
    with pytest.raises(TeacherError, match=r"a\.ckpt is no torch checkpoint"):
        load_checkpoint(both)


def test_a_checkpoint_that_was_packed_anew_is_refused(tmp_path: Path) -> None:
    path, packed = save(tmp_path / "a.ckpt", make_state()), tmp_path / "packed.ckpt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(TeacherError, match=r"packed\.ckpt was packed anew"):
        load_checkpoint(packed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "holds no mapping"),
        ({"model": {}}, "holds no state_dict"),
        ({"state_dict": {"a": 1}}, "'a' of its state_dict is no tensor"),
    ],
)
def test_a_checkpoint_of_another_shape_is_a_sentence(
    tmp_path: Path, content: Any, message: str
) -> None:
    path = tmp_path / "a.ckpt"
    torch.save(content, path)
    with pytest.raises(TeacherError, match=message):
        state_of(load_checkpoint(path), path)


CONFIGURATIONS = [
    ({"algo": {"name": "duo"}}, "uniform_duo"),
    ({"algo": {"name": "flm"}}, "continuous_flm"),
    ({"algo": {"name": "mdlm"}}, "masked_mdlm"),
    ({"parameterization": "subs", "diffusion": "absorbing_state"}, "masked_mdlm"),
    ({"parameterization": "d3pm", "diffusion": "absorbing_state"}, None),
    ({"algo": {"name": "candi"}}, None),
]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(("config", "family"), CONFIGURATIONS)
def test_the_family_is_told_by_the_configuration(
    tmp_path: Path, config: dict[str, Any], family: str | None, trusted: bool
) -> None:
    path = save(tmp_path / "a.ckpt", make_state(), hyper_parameters=hyper_parameters(**config))
    content = load_checkpoint(path, trusted=trusted)
    found = family_of(content)
    assert found is not None
    assert found.name == family
    for wanted in ("uniform_duo", "masked_mdlm"):
        if wanted == family:
            assert check_family(content, wanted, path) == found.evidence
            continue
        with pytest.raises(TeacherError, match=rf"a\.ckpt is of .*the student needs {wanted}"):
            check_family(content, wanted, path)


@pytest.mark.parametrize("more", [{}, {"hyper_parameters": {}}, {"hyper_parameters": {"lr": 1}}])
def test_a_checkpoint_without_a_configuration_is_taken_at_its_word(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    path = save(tmp_path / "a.ckpt", make_state(), **more)
    assert family_of(load_checkpoint(path)) is None
    assert "not recorded" in check_family(load_checkpoint(path), "uniform_duo", path)


def test_an_inspection_says_what_a_checkpoint_holds(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.ckpt",
        {**make_state(), "extra": torch.ones(1)},
        prefix="backbone._orig_mod.",
        hyper_parameters=hyper_parameters(algo={"name": "duo"}),
    )
    facts = inspect(path)
    assert (facts["step"], facts["blocks"], facts["vocab"], facts["hidden_size"]) == (5, 2, 20, 8)
    assert facts["family"] == "uniform_duo"
    assert not facts["is_dit"]
    assert facts["differing_names"] == ["extra"]
    assert facts["dtypes"] == ["torch.float32"]
