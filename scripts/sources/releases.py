"""The releases of the support matrix: the lines of `compat/releases.txt`, and where each of them lies.

A line is `NAME==VERSION`, a release, or `NAME = PART + PART ...`, what somebody has together under a name: an
image, or a head. A part is

* a project and a version: of a package index if it is one (`verl 0.8.0`), else from git (`slime v0.2.4`,
  `megatron 3714d81d`);
* the path of a diff in the slime of the same image, which is applied to its Megatron;
* what cannot be installed on a CPU and is there for people to recognise the image by (`TE 2.15`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from overlay.compat.environment import STACKS
from progress import tracked
from sources import fetch_release, git_sources
from sources.git_sources import UPSTREAMS, FetchError

LIST = Path(__file__).resolve().parents[2] / "compat" / "releases.txt"

#: What an image has and no machine without a device can run.
_LABELS = ("TE",)
_DIFF = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*\.patch")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+[a-z0-9.]*")


class Release(NamedTuple):
    """A line of the list."""

    #: What stands left of ` = `, or the whole line.
    name: str
    #: What stands right of it.
    parts: tuple[str, ...] = ()

    @property
    def project(self) -> str:
        """Which project it is a release or an image of."""
        return re.split(r"==| ", self.name)[0]

    @property
    def is_image(self) -> bool:
        """Whether it is an image, or a stack above Megatron with the Megatron that it pins."""
        return " image " in self.name or self.project in (*(one.name for one in STACKS), "miles-rl")


class ListError(ValueError):
    """A line of the list that says nothing that can be had."""


def read(path: Path = LIST) -> list[Release]:
    """Return the lines of a list. Raises `ListError`."""
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = text.partition("#")[0].strip()
        if not line:
            continue
        name, equals, rest = line.partition(" = ")
        parts = tuple(part.strip() for part in rest.split(" + ")) if equals else ()
        bad = next((part for part in parts if not _is_part(part)), None)
        if bad is not None:
            msg = f"{path.name}:{number}: {bad!r} is no project with a version, no path of a .patch, no label"
            raise ListError(msg)
        found.append(Release(name.strip(), parts))
    return found


def _is_part(part: str) -> bool:
    _, _, version = part.partition(" ")
    return bool(_DIFF.fullmatch(part)) or (bool(version) and " " not in version)


def fetch(release: Release, cache: Path = fetch_release.CACHE) -> Path:
    """Return the folder that a release lies in; an image lies in one, as in a site-packages.

    Raises:
        FetchError: a part cannot be had, or a diff does not apply.

    """
    if not release.parts:
        return _fetch(release.name.replace("==", " "), cache)
    projects = [part for part in release.parts if not _DIFF.fullmatch(part) and not part.startswith(_LABELS)]
    diffs = [part for part in release.parts if _DIFF.fullmatch(part)]
    if len(projects) == 1 and not diffs:
        return _fetch(projects[0], cache)

    def fill(into: Path) -> None:
        into.mkdir()
        for part in projects:
            shutil.copytree(_fetch(part, cache), into, dirs_exist_ok=True)
        for diff in diffs:
            _apply(release, diff, into)

    # After its parts and what is unpacked of them: another line under the same name is another folder.
    wanted = [path for part in projects for path in _paths(part)]
    key = hashlib.sha256(" + ".join([*projects, *diffs, *wanted]).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9.]+", "-", release.name)
    return git_sources.whole(cache / f"{name}-{key}", fill)


def available(listed: Sequence[Release], missing: dict[str, str]) -> Iterator[tuple[Release, Path]]:
    """Yield releases with the folder of each. `missing` gets those that cannot be had, and why."""
    for release in tracked(listed, lambda release: release.name):
        try:
            yield release, fetch(release)
        except FetchError as error:  # noqa: PERF203 -- each may be had or not
            missing[release.name] = str(error)


def _paths(part: str) -> tuple[str, ...]:
    """Return what is unpacked of a part from git, nothing if it is of a package index."""
    project, _, version = part.partition(" ")
    # Of the others an index has nothing, or something else of that name.
    from_git = project in UPSTREAMS and not (project == "verl" and _VERSION.fullmatch(version))
    return UPSTREAMS[project].paths if from_git else ()


def _fetch(part: str, cache: Path) -> Path:
    project, _, version = part.partition(" ")
    if _paths(part):
        return git_sources.fetch(project, version, cache)
    return fetch_release.fetch(f"{project}=={version}", cache)


def _apply(release: Release, diff: str, folder: Path) -> None:
    """Apply a diff of slime's to the Megatron in a folder, of which a distribution has but a part."""
    revision = next((part.partition(" ")[2] for part in release.parts if part.startswith("slime ")), None)
    if revision is None:
        msg = f"{release.name}: {diff} is a path in slime, and the image has none"
        raise FetchError(msg)
    text = git_sources.show("slime", revision, diff)
    under = "megatron/" if (folder / "megatron" / "training").is_dir() else "megatron/core/"
    named = re.findall(rf"^\+\+\+ b/({under}\S+)", text.decode(errors="replace"), re.MULTILINE)
    before = {path: _bytes(folder / path) for path in named}
    # In a folder of a repository git would take the paths for those of the repository, and skip every one.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    command = ["git", "apply", "--whitespace=nowarn", f"--include={under}*", "-"]
    done = subprocess.run(
        command, cwd=folder, env=outside, input=text,
        capture_output=True, check=False, timeout=git_sources.PATIENCE,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["git apply failed"]
        msg = f"{release.name}: {diff} of slime {revision} does not apply: {said[0]}"
        raise FetchError(msg)
    same = [path for path, text in before.items() if _bytes(folder / path) == text]
    if same or not named:
        msg = f"{release.name}: {diff} of slime {revision} changed nothing in {same[0] if same else under}"
        raise FetchError(msg)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
