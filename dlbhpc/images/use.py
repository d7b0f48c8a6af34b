"""How a run gets its image: chosen at submit, proven at begin, entered by every task."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.images.base import default_base
from dlbhpc.images.program import INSTALL
from dlbhpc.images.record import check_pin, read_record_of, verify
from dlbhpc.images.spec import frozen_source, load_image
from dlbhpc.images.task import Bind, RunImage, enter
from dlbhpc.images.unpack import unpacked
from dlbhpc.layout import PACKAGE, Layout

_SCRATCH_VARIABLE = "DLBHPC_SCRATCH"
"""The attempt's own folder in a node's scratch."""
_NODE_SCRATCH = "DLBHPC_NODE_SCRATCH"
"""The profile's scratch, for what outlives an attempt."""
_WRITES_INTO_ITS_CACHE = "datasets_cache"
"""The data source of the upstream that tokenizes for itself, into the cache that it reads."""


def choose_image(
    launch: Launch,
    program: str,
    mount: str,
    gpu: str,
    variables: Iterable[str],
    begun_with: str | None = None,
) -> RunImage:
    """The built image of the launch's upstream, for a run to go through.

    ``variables`` are the names of those that the profile sets, and the run is to see.
    ``begun_with`` is the content that a run which has begun goes through: an image that has been
    built anew since is none of its own. Raises DlbhpcError when it is not built, holds another
    commit, or is not what was built.
    """
    upstream = launch.recipe.upstream
    record = read_record_of(launch.layout, upstream.name, begun_with or "")
    check_pin(record, launch.source_commit)
    verify(launch.layout, record, afresh=False)
    return RunImage(
        name=upstream.name,
        content_sha256=record.content_sha256,
        program=program,
        mount=mount,
        gpu=gpu,
        source=str(frozen_source(upstream)),
        variables=tuple(sorted(variables)),
    )


def other_inputs(layout: Layout, image: RunImage) -> str | None:
    """What a user should know of an image that was made of other packages, or on another base."""
    record, spec = read_record_of(layout, image.name, image.content_sha256), load_image(image.name)
    differs = []
    if record.lock_sha256 != spec.lock_digest:
        differs.append(f"another lock than {spec.lock}")
    if record.base != default_base(spec).text:
        differs.append(f"the base {record.base}")
    if not differs:
        return None
    return f"the image {record.file} was built with {' and '.join(differs)}"


def check_image(image: RunImage, launch: Launch) -> Path:
    """The run's image, as it was when the run was submitted. Raises DlbhpcError otherwise."""
    record = read_record_of(launch.layout, image.name, image.content_sha256)
    if record.content_sha256 != image.content_sha256:
        raise DlbhpcError(
            f"the image {record.file} is another than this run began with: its content has the "
            f"sha256 {record.content_sha256}, the run's {image.content_sha256}; put that one back, "
            "or choose another --output"
        )
    return verify(launch.layout, record, afresh=False)


def enter_image(
    image: RunImage,
    launch: Launch,
    argv: Sequence[str],
    own: Mapping[str, str],
    host: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``argv`` in the run's image on this node, and its environment.

    To be started from ``/``: the folder it is started from would be mounted as well. Raises
    DlbhpcError when the program is not on this node, or the image cannot be unpacked.
    """
    node = os.uname().nodename
    if shutil.which(image.program, path=host.get("PATH")) is None:
        raise DlbhpcError(
            f"{image.program} is not on PATH on the node {node}, and the run goes through an "
            f"image: {INSTALL} (modules and prologue of the cluster profile), or choose another "
            "--cluster"
        )
    record = read_record_of(launch.layout, image.name, image.content_sha256)
    file = launch.layout.images / record.file
    if image.mount == "unpacked":
        # Not in the attempt's own folder, which is removed when it ends: it stays for the next.
        place = Path(host.get(_NODE_SCRATCH, tempfile.gettempdir()))
        file = unpacked(file, image.content_sha256, image.program, place)
    home = launch.output.temporary / "home"
    home.mkdir(parents=True, exist_ok=True)
    return enter(
        image,
        file,
        argv,
        own=own,
        host=host,
        binds=run_binds(launch, host.get(_SCRATCH_VARIABLE)),
        home=home,
        source=launch.source,
    )


def run_binds(launch: Launch, scratch: str | None) -> list[Bind]:
    """What a run sees of the host: the root and our package to read, its output to write.

    Paths are the same inside. An outer folder comes before what lies in it.
    """
    binds = [Bind(launch.layout.root), Bind(PACKAGE)]
    # The data may lie elsewhere, behind a link.
    data = launch.layout.data.resolve()
    if not data.is_relative_to(launch.layout.root):
        binds.append(Bind(data))
    if launch.recipe.data_source == _WRITES_INTO_ITS_CACHE:
        binds.append(Bind(launch.data, writable=True))
    binds.append(Bind(launch.output.folder, writable=True))
    if scratch is not None:
        binds.append(Bind(Path(scratch), writable=True))
    return binds
