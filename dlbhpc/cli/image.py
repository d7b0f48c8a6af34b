"""``dlbhpc image``: build, verify, list or enter the upstreams' images, and fetch their wheels."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.errors import DlbhpcError

if TYPE_CHECKING:
    from dlbhpc.images.spec import ImageSpec
    from dlbhpc.layout import Layout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="freeze an upstream into images/NAME-COMMIT12.sif")
    build.add_argument("name", help="the upstream, or `all`: see `dlbhpc image list`")
    build.add_argument(
        "--base",
        help="docker:REFERENCE, localimage:PATH or debootstrap:SUITE@MIRROR instead of its own",
    )
    build.add_argument(
        "--wheelhouse", type=Path, help="folder with every locked file: no package index is asked"
    )
    build.add_argument("--print", action="store_true", help="print the definition; build nothing")
    check = actions.add_parser("verify", help="prove an image against its record: reads it all")
    check.add_argument("name", help="the upstream")
    listing = actions.add_parser("list", help="the images, and which are built")
    shell = actions.add_parser("shell", help="open a shell in an image, as a run would see it")
    shell.add_argument("name", help="the upstream")
    wheels = actions.add_parser("wheels", help="fill a wheelhouse for an image; builds nothing")
    wheels.add_argument("name", help="the upstream")
    wheels.add_argument("folder", type=Path, help="where the locked files go; what is there stays")
    wheels.add_argument("--index", metavar="URL", help="another simple index (default: PyPI)")
    for action in (build, check, listing, shell):
        action.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.layout import Layout

    if args.action == "wheels":
        return _wheels(args)
    layout = Layout.at(args.root)
    if args.action == "list":
        return _list(layout)
    from dlbhpc.images.spec import list_images, load_image

    if args.action == "build":
        names = list_images() if args.name == "all" else [args.name]
        for name in names:
            _build(load_image(name), args, layout)
        return 0
    spec = load_image(args.name)
    return _verify(spec, layout) if args.action == "verify" else _shell(spec, layout)


def _say(text: str) -> None:
    print(text, flush=True)


def _build(spec: ImageSpec, args: argparse.Namespace, layout: Layout) -> None:
    from dlbhpc.images.base import default_base, parse_base
    from dlbhpc.images.build import build, known_digests
    from dlbhpc.images.definition import render
    from dlbhpc.images.source import source_commit

    base = parse_base(args.base, spec) if args.base else default_base(spec)
    if args.print:
        commit = source_commit(spec.upstream)
        print(render(spec, base, commit, known_digests(spec, base)), end="")
        return
    built = build(spec, base, layout, args.wheelhouse, _say)
    state = "built" if built.fresh else "already built from the same inputs"
    _say(f"{state}: {built.path}\n  content sha256 {built.record.content_sha256}")
    if not built.record.redistributable:
        _say(f"  {spec.name} has no licence file: do not pass this image on")


def _wheels(args: argparse.Namespace) -> int:
    from dlbhpc.images.fetch import INDEX, fill_wheelhouse
    from dlbhpc.images.spec import load_image

    spec = load_image(args.name)
    fill_wheelhouse(args.folder, spec, _say, args.index or INDEX)
    _say(f"{args.folder} holds the {len(spec.packages)} files of {spec.lock}")
    return 0


def _verify(spec: ImageSpec, layout: Layout) -> int:
    from dlbhpc.images.record import check_pin, read_record, verify
    from dlbhpc.images.source import source_commit

    record = read_record(layout, spec.name)
    check_pin(record, source_commit(spec.upstream))
    path = verify(layout, record, afresh=True)
    _say(f"{path} is the image that was built\n  content sha256 {record.content_sha256}")
    if record.lock_sha256 != spec.lock_digest:
        _say(f"  {spec.lock} has changed since: make image-{spec.name} builds it anew")
    return 0


def _list(layout: Layout) -> int:
    from dlbhpc.images.base import default_base
    from dlbhpc.images.record import read_record, record_path
    from dlbhpc.images.source import source_commit
    from dlbhpc.images.spec import list_images, load_image

    print(f"{'image':<11}{'commit':<14}{'python':<8}{'packages':<10}{'licence':<12}state")
    for name in list_images():
        spec = load_image(name)
        commit = source_commit(spec.upstream)
        state = "not built"
        if record_path(layout, name).exists():
            try:
                record = read_record(layout, name)
                same = record.commit == commit and record.lock_sha256 == spec.lock_digest
                state = record.file if same else f"{record.file}, of other inputs"
                if record.base != default_base(spec).text:
                    state += f", on {record.base}"
                if not (layout.images / record.file).is_file():
                    state += ", and the file is missing"
            except DlbhpcError as error:
                state = f"damaged: {error}"  # it must not hide the others
        licence = spec.environment.licence or "none"
        short = commit.removeprefix("bundled-")[:12]
        print(
            f"{name:<11}{short:<14}{spec.environment.python:<8}{len(spec.packages):<10}"
            f"{licence:<12}{state}"
        )
    return 0


def _shell(spec: ImageSpec, layout: Layout) -> int:
    from dlbhpc.images.program import find_program, without_settings
    from dlbhpc.images.record import read_record, verify
    from dlbhpc.images.spec import frozen_source
    from dlbhpc.images.task import Bind

    program = find_program()
    path = verify(layout, read_record(layout, spec.name), afresh=False)
    # As a run sees it: nothing is written to but the node's /tmp.
    argv = [program, "shell", "--cleanenv", "--no-home", "--bind", Bind(layout.root).text]
    argv += ["--pwd", str(frozen_source(spec.upstream)), str(path)]
    os.chdir("/")  # where we are would be mounted as well
    try:
        os.execvpe(argv[0], argv, without_settings(os.environ))
    except OSError as error:
        raise DlbhpcError(f"cannot execute {argv[0]}: {error.strerror}") from error
