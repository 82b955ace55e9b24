"""Compare what the audit says of upstreams' own scripts with the command lines that they really produce.

    ./scripts/matrix scripts                        # scripts of the revisions below
    ./scripts/matrix scripts --wrong "verl v0.7.1"  # of others, and each verdict that is wrong

Each script is run in namespaces of its own, where stand-ins write down what it starts. The audit reads the
script, and it reads each command line of a job that the script produced: the two have to agree.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from overlay.desk.audit.job_settings import JobSettings, read_settings
from overlay.errors import SettingsError
from overlay.source.conditions import Answer
from overlay.source.known_defects import load_defects
from overlay.source.registry import load_patches
from overlay.source.source import Tree
from progress import tracked
from records._script_runs import NoNamespaceError, command_lines
from sources import git_sources, releases
from sources.git_sources import FetchError

#: The revisions whose scripts are run. A bundle may lack the releases of verl.
REVISIONS = (
    "slime v0.1.0", "slime v0.2.0", "slime v0.2.1", "slime v0.2.2", "slime v0.2.3", "slime v0.2.4",
    "slime v0.3.0", "slime v0.3.1", "slime 624b824a8", "miles 31f1ca961",
    "verl v0.8.0", "verl v0.9.0", "verl 1dda039b9", "megatron d98e8a64d",
)  # fmt: skip
#: A command line with fewer settings starts no job.
_FEWEST = 8
_HEAD = ("scripts", "refused", "verdicts", "told", "false hit", "false not hit")


class Verdict(NamedTuple):
    """What the audit says of a defect for a script, and for the command lines that it produces."""

    script: str
    defect: str
    said: Answer
    real: list[Answer]

    @property
    def decided(self) -> bool:
        """Whether the command lines tell."""
        return all(one.word != "untold" for one in self.real)

    @property
    def wrong(self) -> str:
        """The verdict on the script if no command line bears it out, else nothing."""
        real = {one.word for one in self.real}
        if self.said.word == "met":
            return "" if "met" in real else "met"
        return "not-met" if self.said.word == "not-met" and real != {"not-met"} else ""


def compare(root: Path, tree: Tree) -> tuple[list[Verdict], list[str]]:
    """Compare the verdicts on the scripts of a tree, and return with them which the audit refuses.

    Raises:
        NoNamespaceError: There is no namespace to run them in.

    """
    defects = load_defects(load_patches())
    found, refused = [], []
    for script, lines in command_lines(
        root, [str(path.relative_to(root)) for path in _scripts(root)]
    ).items():
        jobs = [job for line in lines for job in [_read(shlex.join(line), root, tree)] if job]
        if not jobs:
            continue
        try:
            settings = read_settings(str(root / script), tree)
        except SettingsError:
            refused.append(script)
            continue
        for defect in defects.values():
            if defect.project.name in settings.dialect.projects:
                real = [job.answer(defect) for job in jobs]
                found.append(Verdict(script, defect.id, settings.answer(defect), real))
    return found, refused


def _scripts(root: Path) -> list[Path]:
    return sorted(root.rglob("*.sh"))


def _read(line: str, folder: Path, tree: Tree) -> JobSettings | None:
    """Return the settings of a command line, `None` if it starts no job."""
    path = folder / "command.line"
    path.write_text(line.replace("\n", " "))
    try:
        settings = read_settings(str(path), tree)
    except SettingsError:
        return None
    return settings if len(settings.values) >= _FEWEST else None


def of(revision: str) -> tuple[list[Verdict], list[str]]:
    """Compare the scripts of one revision. Raises `FetchError` and `NoNamespaceError`."""
    project, _, version = revision.partition(" ")
    parts = {revision, f"{project} {version.removeprefix('v')}"}
    beside = [line for line in releases.read() if parts & {*line.parts}]
    if not beside:
        raise FetchError(f"no line of {releases.LIST.name} has {revision}")
    installed = releases.fetch(max(beside, key=lambda line: line.is_image))
    with tempfile.TemporaryDirectory() as folder:
        git_sources.unpack(git_sources.archive(project, version), Path(folder))
        return compare(Path(folder), Tree([str(installed)]))


def _row(name: str, cells: Sequence[object]) -> str:
    return f"{name:18}" + "".join(
        f"{cell!s:>{len(title) + 2}}" for title, cell in zip(_HEAD, cells, strict=True)
    )


def main(arguments: list[str]) -> int:
    """Print the table. Returns 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revisions", nargs="*", metavar="REVISION", help="such as 'slime v0.3.1'")
    parser.add_argument("--wrong", action="store_true", help="print each verdict that is wrong")
    options = parser.parse_args(arguments)
    print(_row("", _HEAD))
    wrong: list[Verdict] = []
    for revision in tracked(options.revisions or REVISIONS, str):
        try:
            found, refused = of(revision)
        except (FetchError, NoNamespaceError) as error:
            print(f"{revision}: {error}", file=sys.stderr)
            continue
        decided = [one for one in found if one.decided]
        told = sum(one.said.word != "untold" for one in decided) / max(len(decided), 1)
        false = [sum(one.wrong == word for one in found) for word in ("met", "not-met")]
        scripts = len({one.script for one in found}) + len(refused)
        print(_row(revision, (scripts, len(refused), len(decided), f"{told:.0%}", *false)), flush=True)
        wrong += [one for one in found if one.wrong]
    print(
        "\nscripts: those that start a job. refused: those of them that the audit cannot read."
        "\nverdicts: those on known defects that the command lines decide."
        "\ntold: the share of them that the script alone decides."
    )
    for one in wrong if options.wrong else ():
        print(f"{one.script}: {one.defect}: {one.wrong}: {one.said.why}")
    return 1 if wrong else 0
