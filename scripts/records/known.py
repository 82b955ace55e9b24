"""Write `patches/_known.json`, the answers to what patches ask of the sources of the releases that they know.

    ./scripts/matrix known            # all releases of compat/releases.txt
    ./scripts/matrix known --check    # write nothing, and exit with 1 if it is not what would be written

Each answer is found by each Python that overlay is for. What they do not all find is left out, and is parsed
at run time, as any source that is of no such release. What a definition compiles to is kept by Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import overlay
from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide, prints_of
from overlay.errors import SourceError
from overlay.patch import Absent, Calls, Fields, Present
from overlay.reading import known
from overlay.reading.questions import OF_PYTHON
from overlay.reading.source import InstalledTree
from progress import tracked
from sources import releases
from sources.git_sources import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from overlay.patch import Condition, Patch

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "patches" / known.NAME
PROGRAM = Path(__file__).with_name("_known_answers.py")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
#: What the answers are found with, in plain Python.
NEEDED = ("packaging", "wrapt")

#: By module: the questions, and the texts by digest.
Asked = dict[str, dict[str, Any]]


class Asking(InstalledTree):
    """A release of which it is noted what is asked. Nothing is known of it before."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.asked: set[tuple[str, tuple[str, ...]]] = set()

    def ask(self, kind: str, site: str, *more: str) -> Any:
        """Note a question, and answer it."""
        module, _, name = site.partition(":")
        self.asked.add((module, (kind, name, *more)))
        return super().ask(kind, site, *more)

    def _known(self, module: str) -> None:
        del module


def questions_of(patch: Patch) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what a patch asks in any of its variants, with the module that is asked.

    What it asks beside that follows from the answers: where a name is imported from is asked next.
    """
    for variant in (variant for target in patch.targets for variant in target.variants):
        for condition in variant.shape:
            module, _, name = condition.site.partition(":")
            if name:
                yield from ((module, question) for question in _asked_by(condition, name))
        for replacement in variant.replacements:
            module, _, name = replacement.site.partition(":")
            yield from ((module, (kind, name)) for kind in ("decorators", "imported", OF_PYTHON))


def _asked_by(condition: Condition, name: str) -> list[tuple[str, ...]]:
    if isinstance(condition, (Present, Absent)):
        return [("has", name), *([("doubt", name)] if isinstance(condition, Absent) else [])]
    asked: list[tuple[str, ...]] = [("digest", name)]
    if isinstance(condition, Calls):
        asked.append(("calls", name, condition.callee, "last" if condition.last else ""))
    elif isinstance(condition, Fields):
        asked.append(("fields", name, ",".join(condition.names), condition.default))
    return asked


def lacking(patch: Patch) -> str:
    """Return what a patch asks of a module that is in the file and is not answered there, empty if all is."""
    read = json.loads(FILE.read_text(encoding="utf-8").partition("\n")[2])
    if read["code"] != known.code():
        return "it is of other code than that which answers now"
    for module, question in questions_of(patch):
        if module in read["modules"] and " ".join(question) not in read["modules"][module]["asked"]:
            return f"it was not asked: {' '.join(question)} of {module}"
    return ""


def folders() -> list[Path]:
    """Return where the releases lie. Raises `FetchError` for one that cannot be had."""
    return [releases.fetch(release) for release in releases.read()]


def asked_of(places: Iterable[Path]) -> Asked:
    """Return what patches ask of some releases, each of all the sources that any of them has for it."""
    patches = [*load_patches().values()]
    questions: dict[str, set[tuple[str, ...]]] = {}
    for module, question in (one for patch in patches for one in questions_of(patch)):
        questions.setdefault(module, set()).add(question)
    trees = [Asking(place) for place in places]
    for tree in tracked(trees, lambda tree: tree.name):
        # One by one: what two patches mean for each other asks nothing of a source that this does not.
        found = {patch.id: decide(patch, tree) for patch in patches}
        prints_of(patches, found, tree)
        tree.let_go()
        for module, question in tree.asked:
            questions.setdefault(module, set()).add(question)
    about: Asked = {}
    for module, asked in sorted(questions.items()):
        texts = {
            known.digest_of(text.encode("utf-8", "surrogatepass")): text
            for text in (text_of(tree, module) for tree in trees)
            if text
        }
        if texts:
            about[module] = {"asked": sorted(asked), "texts": dict(sorted(texts.items()))}
    return about


def text_of(tree: InstalledTree, module: str) -> str | None:
    """Return the source of a module, `None` if there is none that can be read."""
    try:
        return tree.source(module)
    except SourceError:
        return None


def file_of(about: Asked, answers: Sequence[dict[str, Any]]) -> str:
    """Return the file, of what each Python has answered."""
    pool: dict[str, int] = {}
    modules = {}
    for module, said in about.items():
        rows = {}
        for digest in said["texts"]:
            found = [one["answers"][module][digest] for one in answers]
            if None in found:
                continue
            row = []
            for place, question in enumerate(said["asked"]):
                here = [one[place] for one in found]
                if question[0] == OF_PYTHON:
                    value = {one["python"]: part for one, part in zip(answers, here, strict=True)}
                elif here.count(here[0]) == len(here):
                    value = here[0]
                else:
                    row.append(-1)
                    continue
                row.append(pool.setdefault(json.dumps(value), len(pool)))
            rows[digest] = row
        modules[module] = {"asked": [" ".join(question) for question in said["asked"]], "texts": rows}
    body = json.dumps(
        {"code": known.code(), "answers": [*map(json.loads, pool)], "modules": modules}, separators=(",", ":")
    )
    return f"{known.digest_of(body.encode())}\n{body}"


def pythons() -> dict[str, str]:
    """Return an interpreter of each version that there is, this one among them."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in PYTHONS:
        here = [sys.executable] if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else []
        at = [
            *here,
            shutil.which(f"python{version}"),
            *map(str, sorted(kept.glob(f"{version}.*/bin/python"))),
        ]
        right = next((path for path in at if path and _version(path) == version), None)
        if right is not None:
            found[version] = right
    return found


def _version(path: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def packages(folder: Path) -> Path:
    """Return a folder with overlay and what it needs, into which no Python has built anything."""
    (folder / "overlay").mkdir(parents=True)
    inside = [Path(path) for path in overlay.__path__]
    for part in (entry for path in inside for entry in path.iterdir() if entry.name != "__pycache__"):
        (folder / "overlay" / part.name).symlink_to(part)
    for package in NEEDED:
        (folder / package).symlink_to(Path(str(import_module(package).__file__)).parent)
    return folder


def answered(about: Asked, python: str) -> dict[str, Any]:
    """Return what a Python answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "questions").write_text(json.dumps(about), encoding="utf-8")
        clean = {key: text for key, text in os.environ.items() if not key.startswith(("OVERLAY", "PYTHON"))}
        subprocess.run(
            [python, "-B", str(PROGRAM), str(folder / "questions"), str(folder / "answers")],
            env={**clean, "PYTHONPATH": str(packages(folder / "packages"))},
            check=True,
        )
        found: dict[str, Any] = json.loads((folder / "answers").read_text(encoding="utf-8"))
        return found


def main(arguments: list[str]) -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(prog="scripts/matrix known", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if it is not what would be written")
    options = parser.parse_args(arguments)
    there = pythons()
    if missing := [version for version in PYTHONS if version not in there]:
        print(f"known: no Python {', '.join(missing)} here, and each is asked", file=sys.stderr)
        return 2
    try:
        about = asked_of(folders())
    except FetchError as error:
        print(f"known: {error}", file=sys.stderr)
        return 2
    asked = tracked(there.items(), lambda one: f"Python {one[0]}")
    wanted = file_of(about, [answered(about, path) for _, path in asked])
    if options.check:
        return int(not FILE.exists() or FILE.read_text(encoding="utf-8") != wanted)
    FILE.write_text(wanted, encoding="utf-8")
    texts = sum(len(one["texts"]) for one in about.values())
    print(f"{FILE.name}: {texts:,} sources of {len(about)} modules, {len(wanted) / 1000:,.0f} kB")
    return 0
