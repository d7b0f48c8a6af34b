"""The adapted checkpoint and its provenance."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.inputs.teacher import adapt as adapting
from dlbhpc.inputs.teacher.adapt import (
    Adaptation,
    adapted_from,
    check_teacher,
    ensure_adapted,
    source_sha256_of,
)
from dlbhpc.inputs.teacher.names import (
    INV_FREQ,
    VOCABULARY,
    TeacherError,
    expected,
    keys_digest,
)
from dlbhpc.inputs.teacher.transform import MASKED, UNIFORM, Vocabulary
from dlbhpc.layout import CHECKOUT
from tests.inputs.teacher.conftest import (
    BACKBONE,
    BASE,
    HIDDEN,
    hyper_parameters,
    make_state,
    save,
    torch,
    trained,
)

MASK = 7
ADAPTATION = Adaptation("masked_mdlm", MASKED, Vocabulary(BASE, MASK), BACKBONE)
MDLM = {"parameterization": "subs", "diffusion": "absorbing_state"}


@dataclass(frozen=True)
class Place:
    source: Path
    target: Path
    provenance: Path

    def ensure(self, adaptation: Adaptation = ADAPTATION, **options: Any) -> dict[str, Any]:
        return ensure_adapted(self.source, self.target, self.provenance, adaptation, **options)

    def is_current(self, adaptation: Adaptation = ADAPTATION) -> bool:
        record = adapted_from(self.target, self.provenance, adaptation)
        return record is not None and source_sha256_of(record) == sha256(self.source)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A masked teacher, and where its adaptation goes."""
    inputs = tmp_path / "run" / "inputs"
    parameters = hyper_parameters(**MDLM)
    source = save(tmp_path / "teacher.ckpt", make_state(), hyper_parameters=parameters)
    return Place(
        source, inputs / "teacher_adapted.ckpt", inputs / "teacher_adapted.provenance.json"
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_adapted_checkpoint_is_plain_tensors_and_its_provenance_says_it_all(
    place: Place,
) -> None:
    before = sha256(place.source)
    record = place.ensure()
    content = torch.load(place.target, weights_only=True)
    assert list(content) == ["state_dict"]
    assert set(content["state_dict"]) == {*expected(2), INV_FREQ}
    assert record == json.loads(place.provenance.read_text())
    assert record["source"] == {"path": str(place.source), "sha256": before}
    assert record["output"] == {"path": str(place.target), "sha256": sha256(place.target)}
    assert record["teacher_family"] == "masked_mdlm"
    assert record["transformation"] == MASKED
    assert len(record["transformation_sha256"]) == 64
    assert (record["source_mask_index"], record["target_mask_index"]) == (MASK, BASE)
    assert (record["source_vocab"], record["target_vocab"]) == (BASE, BASE + 1)
    assert record["hidden_size"] == HIDDEN
    assert record["state_keys_sha256"] == keys_digest(content["state_dict"])
    assert sha256(place.source) == before
    assert sorted(path.name for path in place.target.parent.iterdir()) == [
        place.target.name,
        place.provenance.name,
    ]


def test_a_current_adaptation_is_left_alone(place: Place) -> None:
    place.ensure()
    before = place.target.stat().st_mtime_ns
    assert place.is_current()
    place.ensure()
    assert place.target.stat().st_mtime_ns == before


def test_a_teacher_with_a_changed_byte_is_refused(place: Place) -> None:
    data = bytearray(place.source.read_bytes())
    tensor = make_state()["sigma_map.mlp.0.weight"].numpy().tobytes()
    data[data.index(tensor)] ^= 1
    place.source.write_bytes(data)
    with pytest.raises(TeacherError, match=r"teacher\.ckpt is damaged: .* its checksum"):
        place.ensure()
    assert not place.target.exists()


@pytest.mark.parametrize("damage", ["target", "provenance", "torn provenance", "no target"])
def test_a_damaged_adaptation_is_made_again(place: Place, damage: str) -> None:
    place.ensure()
    whole = place.target.read_bytes()
    if damage == "target":
        place.target.write_bytes(whole[:-1])
    elif damage == "provenance":
        place.provenance.unlink()
    elif damage == "torn provenance":
        place.provenance.write_text("{")
    else:
        place.target.unlink()
    assert not place.is_current()
    place.ensure()
    assert place.is_current()
    assert place.target.read_bytes() == whole


def test_another_teacher_or_adaptation_is_made_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ensure()
    other = replace(ADAPTATION, vocabulary=Vocabulary(BASE, MASK + 1))
    assert not place.is_current(other)
    assert place.ensure(other)["source_mask_index"] == MASK + 1
    save(place.source, make_state(seed=1), hyper_parameters=hyper_parameters(**MDLM))
    assert not place.is_current(other)
    place.ensure(other)
    monkeypatch.setattr(adapting, "version_digest", lambda: "another version")
    assert not place.is_current(other)


def test_nothing_is_published_when_saving_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        place.ensure()
    assert list(place.target.parent.iterdir()) == []


def test_a_teacher_that_changes_meanwhile_is_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.save

    def save_and_change(content: Any, file: Any) -> None:
        real(content, file)
        with place.source.open("ab") as source:
            source.write(b"more")

    monkeypatch.setattr(torch, "save", save_and_change)
    with pytest.raises(TeacherError, match="was changed while it was adapted"):
        place.ensure()
    assert list(place.target.parent.iterdir()) == []


def refused(place: Place, message: str, adaptation: Adaptation = ADAPTATION) -> None:
    """Neither checking nor adapting takes it, and nothing is written."""
    for attempt in (
        lambda: check_teacher(place.source, adaptation),
        lambda: place.ensure(adaptation),
    ):
        with pytest.raises(TeacherError, match=rf"teacher\.ckpt.*{message}"):
            attempt()
    assert not place.target.exists()
    assert not place.provenance.exists()


def test_a_teacher_of_the_wrong_family_is_refused(place: Place) -> None:
    refused(
        place,
        "is of the family masked_mdlm .*the student needs uniform_duo",
        replace(ADAPTATION, family="uniform_duo", transformation=UNIFORM),
    )


def test_a_teacher_of_the_wrong_vocabulary_is_refused(place: Place) -> None:
    refused(
        place,
        "has a vocabulary of 20 tokens, the dataset's is 30",
        replace(ADAPTATION, vocabulary=Vocabulary(30, MASK)),
    )


def test_a_teacher_of_eleven_blocks_is_refused(place: Place) -> None:
    save(place.source, make_state(blocks=11))
    wanted = replace(ADAPTATION, backbone=replace(BACKBONE, blocks=12))
    refused(place, r"\(11 blocks, not 12\): it lacks blocks.11", wanted)


def test_a_teacher_with_an_extra_key_is_refused(place: Place) -> None:
    save(place.source, {**make_state(), "latent_projection.0.bias": torch.ones(2)})
    refused(place, "it has the unexpected latent_projection.0.bias")


def test_a_teacher_with_a_mask_row_of_nan_is_refused(place: Place) -> None:
    state = make_state()
    state["vocab_embed.embedding"][MASK] = float("nan")
    save(place.source, state)
    refused(place, "vocab_embed.embedding holds values that are not finite")


def test_a_teacher_that_would_run_code_is_refused(place: Place) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(place.source.parent / "trap"),)

    save(place.source, make_state(), callbacks=Evil())
    refused(place, "names .*mkdir, which would run code")
    assert not (place.source.parent / "trap").exists()


def test_a_truncated_teacher_is_refused(place: Place) -> None:
    place.source.write_bytes(place.source.read_bytes()[:5000])
    refused(place, "is truncated")


def test_a_missing_teacher_is_refused(place: Place) -> None:
    place.source.unlink()
    with pytest.raises(TeacherError, match=r"there is no checkpoint .*teacher\.ckpt"):
        place.ensure()


def test_a_trusted_teacher_is_recorded_as_such(place: Place) -> None:
    assert place.ensure()["trusted"] is False
    place.provenance.unlink()
    assert place.ensure(trusted=True)["trusted"] is True


class Lazy:
    """A tensor that a library hides in an object: unpickled, it is ordinary memory."""

    def __init__(self, tensor: Any) -> None:
        self.array = tensor.numpy().copy()

    def __reduce__(self) -> Any:
        return torch.from_numpy, (self.array,)


def test_a_trusted_teacher_of_ordinary_memory_keeps_its_values(place: Place) -> None:
    sizes = {"h": 64, "c": 128, "f": 256}  # tensors of several pages
    state = make_state(**sizes)
    save(place.source, {name: Lazy(tensor) for name, tensor in state.items()})
    place.ensure(trusted=True)
    adapted = torch.load(place.target, weights_only=True)["state_dict"]
    differing = [
        name
        for name, tensor in state.items()
        if name not in VOCABULARY and not torch.equal(adapted[name], tensor)
    ]
    assert differing == []
    kept = [row for row in range(BASE) if row != MASK]
    assert all(torch.equal(adapted[name][kept], state[name][kept]) for name in VOCABULARY)


# The peak is the process's own: getrusage would begin with that of the process it was forked from.
_MEASURE = r"""
import re, sys, torch
from pathlib import Path
from dlbhpc.inputs.teacher.adapt import Adaptation, ensure_adapted
from dlbhpc.inputs.teacher.names import Backbone
from dlbhpc.inputs.teacher.transform import MASKED, Vocabulary
from dlbhpc.inputs.teacher.unadapted import check_unadapted

def status(key):
    return 1024 * int(re.search(key + r":\s*(\d+) kB", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
assert not torch.distributed.is_initialized()
source, folder, base_vocab = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
vocabulary, backbone = Vocabulary(base_vocab, 103), Backbone(4, 12)
adaptation = Adaptation("masked_mdlm", MASKED, vocabulary, backbone)
Path("/proc/self/clear_refs").write_text("5")
base = status("VmRSS")
if sys.argv[4] == "used as it is":
    check_unadapted(source, "uniform_duo", vocabulary, backbone)
else:
    ensure_adapted(source, folder / "adapted.ckpt", folder / "provenance.json", adaptation)
print(status("VmHWM") - base)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training checkpoint", "state alone", "used as it is"])
def test_memory_stays_within_1_3_times_the_checkpoint(tmp_path: Path, kind: str) -> None:
    vocab = 30_522  # most of the state is vocabulary, the part that is built anew
    state = make_state(vocab, blocks=4, h=768, c=128, f=256)
    more = {}
    if kind == "training checkpoint":
        more = {"optimizer_states": [{"state": {0: torch.ones(60_000_000)}}]}
    path = tmp_path / "teacher.ckpt"
    if kind == "used as it is":
        source = trained(path, state, heads=12)
    else:
        source = save(path, state, **more)
    del state, more
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(source), str(tmp_path), str(vocab), kind],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    size = source.stat().st_size
    assert size > 250_000_000
    assert int(done.stdout) <= 1.3 * size, f"{int(done.stdout) / size:.2f} times the file"
