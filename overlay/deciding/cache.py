"""The cache of decisions: what was decided on a source, for the next process that meets the very same one.

The ranks of a node decide on the same files, in each start of a job again. The first of them writes down
what it decided, each question that it asked of the installation, and a digest of each answer: in the folder
that `OVERLAY_CACHE` names, or in one of this user for what is temporary. The others wait for it, and ask the
same questions, which takes reading and no parsing; if one answer differs, they decide themselves. What
decides is a function of the answers, of the patches and of overlay's own code, of which the digest is the
name of the file.

A folder that others may write to is not used: they could say what is applied here.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from overlay import log
from overlay._version import __version__
from overlay.base import settings
from overlay.deciding.cache_folder import Folder, usual
from overlay.deciding.decide import decide, settle, variant_of
from overlay.errors import SourceError
from overlay.reading import known
from overlay.reading.source import InstalledTree
from overlay.verdict import SiteFinding, TargetVerdict, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from overlay.deciding.trusted import Trusted
    from overlay.patch import Patch, Project

#: Rooms whose code decides.
_DECIDING = ("deciding", "reading", "base")
#: What code lies in: an image that was slimmed has the compiled files alone.
_CODE = (".py", ".pyc")
#: What else decides: the words.
_WORDS = ("patch", "verdict", "errors")


class Witness(InstalledTree):
    """The installation, and what was asked of it: each question with a digest of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, str] = {}
        #: Whether a question had two answers: what was decided is then of no one state of the installation.
        self.torn = False

    def _note(self, question: str, answer: str) -> None:
        self.torn = self.answers.setdefault(question, answer) != answer or self.torn

    def source(self, module: str) -> str | None:
        """Return the source of a module, and note which it was."""
        try:
            text = super().source(module)
        except SourceError as error:
            self._note(f"source {module}", f"! {error}")
            raise
        self._note(f"source {module}", _digest(text))
        return text

    def read(self, path: str) -> str | None:
        """Return a file, and note which it was."""
        text = super().read(path)
        self._note(f"read {path}", _digest(text))
        return text

    def is_package(self, module: str) -> bool:
        """Return whether a module is a package, and note it."""
        found = super().is_package(module)
        self._note(f"package {module}", str(found))
        return found

    def metadata_version(self, project: Project) -> str | None:
        """Return the version in the metadata of a project, and note it."""
        found = super().metadata_version(project)
        self._note(f"metadata {project.name}", str(found))
        return found

    def agrees(self, answers: dict[str, str], projects: dict[str, Project]) -> bool:
        """Return whether each question has the answer that it had."""
        ask: dict[str, Callable[[str], object]] = {
            "source": self._text,
            "read": self.read,
            "package": self.is_package,
            "metadata": lambda name: self.metadata_version(projects[name]),
        }
        for question, answer in answers.items():
            kind, _, about = question.partition(" ")
            with suppress(SourceError):  # which is an answer
                ask[kind](about)
            if self.torn or self.answers.get(question) != answer:
                return False
        return True


def decide_all(
    patches: Sequence[Patch], tree: Witness, proven: Mapping[str, Trusted] | None = None
) -> dict[str, Verdict]:
    """Return the verdicts on all patches, with what they mean for each other, by id.

    `proven` says by patch what was proven here.
    """
    trusted = proven or {}
    said = settings.cache()
    if said is None:
        return _decided(patches, tree, trusted)
    try:
        folder = Folder(said or usual(), private=not said)
        try:
            return _from_memory(folder, patches, tree, trusted)
        finally:
            folder.close()
    except Exception as error:  # noqa: BLE001 -- whatever a broken file makes of it, nothing is lost but time
        reason = str(error) or type(error).__name__
        if said:
            log.warning(f"OVERLAY_CACHE={said!r} is not used: {reason}")
        else:
            log.debug(f"what is decided here is not kept: {reason}")
        return _decided(patches, tree, trusted)


def _decided(patches: Sequence[Patch], tree: Witness, trusted: Mapping[str, Trusted]) -> dict[str, Verdict]:
    found = settle(patches, {patch.id: decide(patch, tree, trusted.get(patch.id)) for patch in patches}, tree)
    tree.prints = prints_of(patches, found, tree)  # now: soon the syntax trees are let go of
    return found


def _from_memory(
    folder: Folder, patches: Sequence[Patch], tree: Witness, trusted: Mapping[str, Trusted]
) -> dict[str, Verdict]:
    """Return what the folder has for these patches and this source; if nothing, decide and leave it there."""
    import json

    key = _key(patches, trusted)
    name = f"{key}.json"
    found = _remembered(folder.read(name), patches, tree)
    if found is not None:
        return found
    with folder.alone(key):  # the ranks of a node come here at once
        found = _remembered(folder.read(name), patches, tree)
        if found is not None:
            return found
        found = _decided(patches, tree, trusted)
        kept = {
            "answers": tree.answers,
            "prints": tree.prints,
            "verdicts": [verdict.to_dict() for verdict in found.values()],
        }
        if not tree.torn:
            folder.write(name, json.dumps(kept))
    return found


def _remembered(text: str | None, patches: Sequence[Patch], tree: Witness) -> dict[str, Verdict] | None:
    """Return the verdicts that were kept, `None` if there are none for what is installed here."""
    import json

    if text is None:
        return None
    projects = {target.project.name: target.project for patch in patches for target in patch.targets}
    try:
        kept = json.loads(text)
        if not tree.agrees(kept["answers"], projects):
            return None
        found = {one["patch"]: _verdict(one) for one in kept["verdicts"]}
        prints = {site: (origin, list(prints)) for site, (origin, prints) in kept["prints"].items()}
        verdicts = {patch.id: found[patch.id] for patch in patches}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        log.debug(f"what was kept is broken, and is made anew: {type(error).__name__}: {error}")
        return None
    tree.prints = prints
    return verdicts


def prints_of(
    patches: Iterable[Patch], found: dict[str, Verdict], tree: InstalledTree
) -> dict[str, tuple[str, list[str]]]:
    """Return where each site that is replaced is defined, and fingerprints of what that compiles to."""
    prints = {}
    for patch in patches:
        for target in found[patch.id].targets if found[patch.id].verdict == "apply" else ():
            variant = variant_of(patch, target)
            for replacement in variant.replacements if variant is not None else ():
                if not replacement.new:
                    with suppress(SourceError):  # it is met, and told, where the site is looked at
                        origin = tree.chain(replacement.site)[-1]
                        prints[replacement.site] = (origin, tree.ask("prints", origin))
    return prints


def _key(patches: Iterable[Patch], trusted: Mapping[str, Trusted]) -> str:
    """Return a digest of all that decides beside the source: Python, our code, patches, what is trusted."""
    import json
    from hashlib import sha256

    import packaging

    data = [*(patch.to_dict() for patch in patches), *(trusted[name].to_dict() for name in sorted(trusted))]
    total = sha256(
        json.dumps(
            [__version__, packaging.__version__, sys.version, sys.implementation.cache_tag, data]
        ).encode()
    )
    for place in _own_files(patches):
        with open(place, "rb") as file:
            total.update(sha256(file.read()).digest())
    return total.hexdigest()


def _own_files(patches: Iterable[Patch]) -> list[str]:
    """Return the files of what decides, and of what tells the version of a project."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = {
        os.path.join(here, room, name) for room in _DECIDING for name in os.listdir(os.path.join(here, room))
    }
    found.update(os.path.join(here, f"{name}{ending}") for name in _WORDS for ending in _CODE)
    # What tells a version asks others of its package: a list of releases, for one.
    readers = {target.project.read_version.__module__ for patch in patches for target in patch.targets}
    for name in readers:
        place = os.path.dirname(getattr(sys.modules.get(name), "__file__", None) or "")
        found.update(os.path.join(place, file) for file in os.listdir(place or here) if place)
    code = [path for path in found if path.endswith(_CODE) and os.path.isfile(path)]
    return sorted([*code, *known.files()])


def _digest(text: str | None) -> str:
    from hashlib import sha256

    return "none" if text is None else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _verdict(data: dict[str, Any]) -> Verdict:
    """Return a verdict from plain data. Raises `TypeError` or `LookupError` if it is none."""
    targets = tuple(
        TargetVerdict(
            **{**target, "findings": tuple(SiteFinding(**finding) for finding in target["findings"])}
        )
        for target in data["targets"]
    )
    return Verdict(**{**data, "targets": targets})
