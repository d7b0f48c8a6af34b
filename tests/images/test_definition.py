"""The definitions: for every image and base, parsed, linted, and with nothing that could break."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.base import Base, default_base, parse_base
from dlbhpc.images.definition import inputs_digest, render, staged_packages
from dlbhpc.images.source import source_commit
from dlbhpc.images.spec import ImageSpec, list_images, load_image

NAMES = list_images()
SHELL_SECTIONS = ("environment", "post", "test", "runscript")
MIRROR = "http://mirror.example.org/debian"
DIGEST = "sha256:" + "d" * 64


def definition(spec: ImageSpec, base: Base | None = None, **digests: str) -> str:
    return render(spec, base or default_base(spec), source_commit(spec.upstream), digests)


def sections(text: str) -> dict[str, str]:
    """The sections of a definition by name."""
    parts = re.split(r"(?m)^%(\w+).*$", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_spython_reads_the_definition(name: str, tmp_path: Path) -> None:
    from spython.main.parse.parsers import SingularityParser

    spec = load_image(name)
    path = tmp_path / "image.def"
    path.write_text(definition(spec))
    stages: Mapping[str, Any] = SingularityParser(str(path)).recipe
    final = list(stages.values())[-1]
    assert final.fromHeader == spec.environment.base
    assert f"source /opt/dlbhpc/upstream/{name}" in final.files
    assert any(line.startswith("dlbhpc.commit ") for line in final.labels)
    assert "/opt/venv/bin/python -u" in final.cmd
    if spec.environment.cuda:
        assert spec.environment.cuda in [stage.fromHeader for stage in stages.values()]
        assert final.layer_files == {"cuda": ["/usr/local/cuda/ /opt/dlbhpc/build/cuda"]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("section", SHELL_SECTIONS)
def test_the_scripts_pass_a_shell_lint(name: str, section: str) -> None:
    beside = str(Path(sys.executable).parent)
    linter = shutil.which("shellcheck", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    script = "#!/bin/sh\n" + sections(definition(load_image(name)))[section]
    for argv in (["sh", "-n"], ["bash", "-n"]):
        done = subprocess.run(argv, input=script, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    if linter is None:
        pytest.skip("shellcheck is not installed; sh -n and bash -n passed")
    argv = [linter, "--severity=style", "-"]
    done = subprocess.run(argv, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_test_script_is_python_that_compiles(name: str) -> None:
    script = sections(definition(load_image(name)))["test"]
    found = re.search(r"python -c '\n(.*)\n'", script, re.DOTALL)
    assert found is not None
    compile(found[1], "test", "exec")
    assert "'" not in found[1]


@pytest.mark.parametrize("name", NAMES)
def test_every_locked_package_is_installed_once_with_its_hash(name: str) -> None:
    spec = load_image(name)
    staged = staged_packages(spec)
    lines = [line for text in staged.values() for line in text.splitlines()]
    assert sorted(lines) == sorted(package.line for package in spec.packages)
    post = sections(definition(spec))["post"]
    sources = spec.environment.from_source
    assert post.count("-r /opt/dlbhpc/build/packages/wheels.txt") == 1
    assert re.findall(r'(?m)^ *build (\S+) "\$@"$', post) == list(sources)
    assert set(staged) == {"wheels.txt", *(f"{package}.txt" for package in sources)}
    # The hashes are required once, for what is installed and what is downloaded to be built.
    assert post.count("--require-hashes") == 1
    assert post.count("-m pip ") == 1
    taken = re.findall(r'(?m)^ *pip (install|download) "\$@"', post)
    assert taken == (["install", "download"] if sources else ["install"])


@pytest.mark.parametrize("name", NAMES)
def test_packages_without_a_wheel_are_built_in_their_order_after_the_others(name: str) -> None:
    spec = load_image(name)
    post = sections(definition(spec))["post"]
    order = ["wheels", *spec.environment.from_source]
    places = [post.index("/wheels.txt"), *(post.index(f"build {name} ") for name in order[1:])]
    assert places == sorted(places)


def test_nothing_of_this_machine_is_in_a_definition(tmp_path: Path) -> None:
    for name in NAMES:
        text = definition(load_image(name))
        for word in (str(Path.cwd()), os.uname().nodename, getpass.getuser() + "@"):
            assert word not in text


def test_a_known_digest_takes_the_place_of_the_tag() -> None:
    spec = load_image("duo")
    base, cuda = spec.environment.base, spec.environment.cuda
    assert cuda is not None
    text = definition(spec, **{base: DIGEST})
    assert f"From: docker.io/library/python@{DIGEST}\n" in text
    assert f"From: {cuda}\n" in text


def test_a_debian_base_names_the_release_and_the_mirror() -> None:
    spec = load_image("reference")
    text = definition(spec, parse_base(f"debootstrap:bookworm@{MIRROR}", spec))
    assert f"Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: {MIRROR}\n" in text
    assert "python3-venv" in text
    assert "From:" not in text


def test_a_local_image_is_named_by_its_path(tmp_path: Path) -> None:
    spec = load_image("reference")
    path = tmp_path / "base.sif"
    path.touch()
    text = definition(spec, parse_base(f"localimage:{path}", spec))
    assert f"Bootstrap: localimage\nFrom: {path}\n" in text


@pytest.mark.parametrize("value", ["a\nb", "a b", "a;b", "$(id)", "%post", "{{ x }}", "a'b", "a\\"])
def test_a_value_that_could_leave_its_place_is_refused(value: str) -> None:
    spec = load_image("reference")
    for broken in (
        replace(spec, environment=replace(spec.environment, licence=value)),
        replace(spec, environment=replace(spec.environment, build_environment={"KEY": value})),
        replace(spec, environment=replace(spec.environment, imports=(value,))),
        replace(spec, upstream=replace(spec.upstream, entrypoint=value)),
    ):
        with pytest.raises(DlbhpcError, match=r"(?s)image reference: .* a definition cannot hold"):
            definition(broken)
    with pytest.raises(DlbhpcError, match="a definition cannot hold"):
        definition(spec, Base("localimage", f"/x{value}"))
    with pytest.raises(DlbhpcError, match="a definition cannot hold"):
        render(spec, default_base(spec), f"x{value}", {})


def test_the_version_of_dlbhpc_alone_makes_no_other_image() -> None:
    spec = load_image("reference")
    base = default_base(spec)
    texts = {render(spec, base, "bundled-1", {}, version=version) for version in ("1", "2")}
    assert len(texts) == 2
    digest = inputs_digest(spec, base, "bundled-1", {})
    assert digest == inputs_digest(spec, base, "bundled-1", {})
    assert digest != inputs_digest(spec, base, "bundled-2", {})
    assert digest != inputs_digest(spec, base, "bundled-1", {base.reference: DIGEST})
    local = Base("localimage", "/base.sif")
    digests = {inputs_digest(spec, local, "bundled-1", {"/base.sif": d}) for d in ("1", "2")}
    assert len(digests) == 2, "another file of the same name is another base"
    other = replace(spec, packages=spec.packages[1:])
    assert digest != inputs_digest(other, base, "bundled-1", {})


@pytest.mark.parametrize("left", [["venv"], ["dlbhpc/build/packages/wheels.txt", "venv"], []])
def test_a_folder_of_the_host_over_our_own_stops_the_script_before_it_writes(
    tmp_path: Path, left: list[str]
) -> None:
    post = sections(definition(load_image("reference")))["post"]
    for name in left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    # No Python is found: without the refusal the script ends as well, but later.
    script = post.replace("/opt/", f"{tmp_path}/").replace("command -v python", "command -v no-")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "/opt is the host's" in done.stderr.replace(f"{tmp_path}", "/opt")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", NAMES)
def test_the_script_removes_nothing_that_may_be_the_hosts(name: str) -> None:
    """The builder mounts the host's /tmp and more into %post: a sweep there empties the host's."""
    post = sections(definition(load_image(name)))["post"]
    assert "-delete" not in post, "a Docker base brings no caches"
    sweeps = [line.strip() for line in post.splitlines() if "rm -r" in line]
    assert sweeps == [
        "find /opt/venv -name __pycache__ -type d -prune -exec rm -rf {} +",
        "rm -rf /opt/dlbhpc/build",
    ]
    removed = re.findall(r"(?m)^ *rm -f (.*)$", post)
    paths = [path for line in removed for path in line.split()]
    assert paths
    for path in paths:
        assert re.fullmatch(r"/var/(log|lib/dpkg|cache/ldconfig)/[a-z/.-]+", path), path
        assert "*" not in path


@pytest.mark.parametrize("mounted", ["", "/var", "/var/lib", "/var/lib/apt/lists"])
def test_of_a_fresh_debian_goes_what_apt_fetched_but_never_the_hosts(
    tmp_path: Path, mounted: str
) -> None:
    spec = load_image("reference")
    post = sections(definition(spec, parse_base(f"debootstrap:bookworm@{MIRROR}", spec)))["post"]
    script = post[post.index("    for folder in /var/cache/apt") :]
    files = {
        "/var/cache/apt/archives/one.deb": mounted != "/var",
        "/var/lib/apt/lists/a/two": mounted == "",
    }
    for name in files:
        (tmp_path / name[1:]).parent.mkdir(parents=True)
        (tmp_path / name[1:]).touch()
    # No file of this machine: every path of the script lies in the test's own folder.
    mounts = "none / overlay\n" + (f"none {tmp_path}{mounted} ext4\n" if mounted else "")
    (tmp_path / "mounts").write_text(mounts)
    script = script.replace("/proc/self/mounts", "MOUNTS")
    script = re.sub(r"(?<![\w}])/var\b", f"{tmp_path}/var", script)
    script = script.replace("MOUNTS", f"{tmp_path}/mounts")
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: not (tmp_path / name[1:]).exists() for name in files} == files


@pytest.mark.parametrize("fresh", [True, False])
def test_a_fresh_debian_forgets_the_name_and_the_name_servers_of_its_builder(fresh: bool) -> None:
    """debootstrap copies both; files are put before %post, in which the host's lie over them."""
    spec = load_image("reference")
    base = parse_base(f"debootstrap:bookworm@{MIRROR}", spec) if fresh else default_base(spec)
    files = sections(definition(spec, base))["files"].split("\n")
    for path in ("/etc/hostname", "/etc/resolv.conf"):
        assert (f"    nothing {path}" in files) is fresh
