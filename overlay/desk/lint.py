"""The rules that every patch is held to, in this repository and in packs.

Nothing is left of the template, its words are there, and its contract is.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from overlay.patch import CHANGES, Calls, Contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from overlay.patch import Patch, Target, Variant

#: What the template puts wherever a person has to say something.
PLACEHOLDER = "TODO"

ID = re.compile(r"([a-z][a-z0-9-]*/)?[a-z][a-z0-9]*\.[a-z][a-z0-9]*(-[a-z0-9]+)*")
UPSTREAM = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{7,40})")
_SITE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
_SUMMARY = range(10, 91)
_WHY = 80


def faults(patch: Patch) -> list[str]:
    """Return a sentence for each rule that a patch breaks, nothing if it is of the form."""
    return [
        *_placeholders(patch),
        *_contract(patch),
        *_words(patch),
        *_seen_in_a_job(patch),
        *_targets(patch),
    ]


def _placeholders(patch: Patch) -> Iterator[str]:
    """Look into what defines the patch, each file of its folder if it has one."""
    files = {Path(file) for module in _modules(patch) if (file := getattr(module, "__file__", None))}
    folder = _folder(patch)
    if folder is not None:
        files |= {path for path in folder.rglob("*.py") if "__pycache__" not in path.parts}
    for file in sorted(files):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if PLACEHOLDER in line:
                yield f"{file.name}:{number} is not filled in: {line[line.index(PLACEHOLDER) :]}"


def _modules(patch: Patch) -> list[ModuleType]:
    """Return the modules that build what the patch puts in place."""
    names = {
        replacement.make.__module__
        for target in patch.targets
        for variant in target.variants
        for replacement in variant.replacements
    }
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _home(patch: Patch) -> ModuleType | None:
    """Return the module that defines the patch: that of a factory, or a package above it."""
    for module in _modules(patch):
        name = module.__name__
        while name:
            found = sys.modules.get(name)
            if getattr(getattr(found, "PATCH", None), "id", None) == patch.id:
                return found
            name = name.rpartition(".")[0]
    return None


def _folder(patch: Patch) -> Path | None:
    """Return the folder that is the patch's own, `None` if it is a file."""
    home = _home(patch)
    is_folder = hasattr(home, "__path__") and getattr(home, "__file__", None)
    return Path(str(is_folder)).parent if is_folder else None


def _contract(patch: Patch) -> Iterator[str]:
    """Ask for the contract of a patch of overlay's own; whoever has a pack may write one."""
    home, folder = _home(patch), _folder(patch)
    if home is None or folder is None:
        return
    if not any((folder / place).is_file() for place in ("contract.py", "contract/__init__.py")):
        if "/" not in patch.id:
            yield "contract: the folder has none (contract.py), by which others see that the patch is right"
        return
    if not isinstance(getattr(import_module(f"{home.__name__}.contract"), "CONTRACT", None), Contract):
        yield "contract: contract.py defines no CONTRACT"


def _words(patch: Patch) -> Iterator[str]:
    if not ID.fullmatch(patch.id):
        yield f"id: {patch.id!r} is not `project.words-with-hyphens`"
    if patch.revision < 1:
        yield "revision: the first one is 1"
    if len(patch.summary) not in _SUMMARY or patch.summary.endswith(".") or "\n" in patch.summary:
        yield f"summary: one line of {_SUMMARY.start} to {_SUMMARY.stop - 1} characters without a full stop"
    if len(patch.why) < _WHY or not patch.why.rstrip().endswith("."):
        yield f"why: sentences of at least {_WHY} characters: what goes wrong, for whom, and what is done"
    if "/" not in patch.id and not patch.evidence.endswith("."):
        yield "evidence: what shows that it is exact, or why it is opt-in, in a sentence"
    if bool(patch.without) != patch.companion:
        yield "without: what a job does without it, which a companion says and nothing else does"
    if not patch.upstream:
        yield "upstream: where upstream discusses it is missing"
    for reference in patch.upstream:
        if not UPSTREAM.fullmatch(reference):
            yield f"upstream: {reference!r} is neither `owner/repo#number` nor `owner/repo@commit`"


def _seen_in_a_job(patch: Patch) -> Iterator[str]:
    if "/" not in patch.id and not (patch.changes and patch.met.endswith(".")):
        yield "changes, met: what changes in a job, and under which settings, in a sentence"
    for word in patch.changes:
        if word not in CHANGES:
            yield f"changes: {word!r} is none of {', '.join(CHANGES)}"


def _targets(patch: Patch) -> Iterator[str]:
    if not patch.targets:
        yield "targets: there is none"
        return
    leading = patch.targets[0]
    if leading.optional:
        yield "targets: the first one leads, and cannot be optional"
    project = patch.id.partition("/")[2] or patch.id
    if project.partition(".")[0] != leading.project.name.partition("-")[0]:
        yield f"targets: the first one is {leading.project.name}, after which the patch is not named"
    serving = {target.project.name: target.serves for target in patch.targets}
    for target in patch.targets:
        name, served = target.project.name, target.serves
        if served and (served == name or serving.get(served, "itself")):
            yield f"{name}: serves: {served!r} is no other target's project, or one that serves another"
        yield from (f"{name}: {text}" for text in _target(target))


def _target(target: Target) -> Iterator[str]:
    names = [variant.name for variant in target.variants]
    if len(names) != len(set(names)):
        yield "two variants have one name"
    if not names:
        yield "it has no variant"
    for variant in target.variants:
        yield from (f"variant {variant.name!r}: {text}" for text in _variant(variant))


def _variant(variant: Variant) -> Iterator[str]:
    if not variant.replacements:
        yield "it replaces nothing"
    for site in variant.sites():
        if not _SITE.fullmatch(site):
            yield f"{site!r} is not `module:qualname`"
    asked = [item.site for item in (*variant.replacements, *variant.facts)] + [*variant.same]
    for site in sorted({site for site in asked if asked.count(site) > 1}):
        yield f"{site} is named twice"
    for fact in variant.facts:
        callee = f"{fact.site.partition(':')[0]}:{getattr(fact, 'callee', '')}"
        if isinstance(fact, Calls) and callee not in variant.sites():
            yield f"{fact.site} is to call {callee}, which is neither replaced nor relied on"
    for replacement in variant.replacements:
        # Inside a class Python stores a private name under another one.
        inner = replacement.site.partition(":")[2].split(".")[1:]
        if any(name.startswith("__") and not name.endswith("__") for name in inner):
            yield f"{replacement.site} is a private name"
