"""Make a release of what is in the checkout: its version, and its section of the changelog.

    ./scripts/release 0.2.0

sets the version and moves the fragments of `changes/` into CHANGELOG.md, under it and today's date. The rest
is for the person who releases: a look at the diff, `./scripts/test`, a commit and a tag.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>unreleased|\d{4}-\d\d-\d\d)\)\n", re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")
_WIDTH = 120


class ReleaseError(RuntimeError):
    """Why there can be no such release. Nothing was written."""


def fragments(root: Path) -> list[Path]:
    """Return the files of the changes that are in no release yet, by name."""
    return sorted(path for path in (root / "changes").glob("*.md") if path.name != "README.md")


def fault(fragment: Path) -> str:
    """Return what is wrong with a fragment, empty if it is a list item of the changelog."""
    lines = fragment.read_text().splitlines()
    if not lines or not lines[0].startswith("- "):
        return "it is no list item (`- ...`)"
    if any(not line.startswith(("- ", "  ")) or len(line) > _WIDTH for line in lines):
        return f"a line of it is neither a list item nor indented below one, or is longer than {_WIDTH}"
    return ""


def changelog(text: str, version: str, date: str, items: str) -> str:
    """Return the changelog with a dated section for a version, on top.

    A section of that version which is unreleased gets the items and the date.

    Raises:
        ReleaseError: The version has been released, is not above the latest, or nothing has changed.

    """
    top = HEADING.search(text)
    if top is None:
        raise ReleaseError("the changelog has no section `## VERSION (date)`")
    heading = f"## {version} ({date})\n"
    if top["date"] == "unreleased":
        if top["version"] != version:
            raise ReleaseError(f"the changelog says that the next release is {top['version']}")
        following = HEADING.search(text, top.end())
        end = following.start() if following else len(text)
        body = text[top.end() : end].rstrip("\n")
        return f"{text[: top.start()]}{heading}{body}\n{items}" + (f"\n{text[end:]}" if following else "")
    if _key(version) <= _key(top["version"]):
        raise ReleaseError(f"{top['version']} has been released already")
    if not items:
        raise ReleaseError("nothing has changed: there are no fragments in changes/")
    return f"{text[: top.start()]}{heading}\n{items}\n{text[top.start() :]}"


def _key(version: str) -> tuple[list[int], int]:
    """Return what versions are ordered by: candidates come before their release."""
    numbers, _, candidate = version.partition("rc")
    return [int(number) for number in numbers.split(".")], int(candidate or sys.maxsize)


def release(version: str, root: Path, date: str) -> list[Path]:
    """Write the version and the changelog, delete the fragments, and return what was changed.

    Raises:
        ReleaseError: There can be no such release; nothing was written.

    """
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version of the form 1.2.3 or 1.2.3rc1")
    found = fragments(root)
    for path in found:
        if fault(path):
            raise ReleaseError(f"{path.relative_to(root)}: {fault(path)}")
    items = "".join(path.read_text().rstrip("\n") + "\n" for path in found)
    log, module = root / "CHANGELOG.md", root / "overlay" / "_version.py"
    text = changelog(log.read_text(), version, date, items)
    log.write_text(text)
    module.write_text(re.sub(r'(__version__ = )"[^"]*"', rf'\1"{version}"', module.read_text()))
    for path in found:
        path.unlink()
    return [log, module, *found]


def main(arguments: list[str]) -> int:
    """Make the release that the command line names; exit status 1 if there can be none."""
    parser = argparse.ArgumentParser(description="Set the version, and give its changes a section.")
    parser.add_argument("version", metavar="VERSION", help="such as 0.2.0 or 0.2.0rc1")
    options = parser.parse_args(arguments)
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    try:
        changed = release(options.version, ROOT, today)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in changed:
        print(path.relative_to(ROOT))
    return 0
