"""The rules that every patch is held to, in this repository and in packs.

Nothing is left of the template, its words are there, and its contract is.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from overlay.patch import CHANGES, Calls, Contract
from overlay.source.registry import module_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
    return [*_files(patch), *_words(patch), *_seen_in_a_job(patch), *_targets(patch)]


def _files(patch: Patch) -> Iterator[str]:
    """Look into the file that defines a patch, or into all of its folder."""
    module = sys.modules.get(module_of(patch.id))
    file = Path(getattr(module, "__file__", None) or "")
    is_folder = file.name == "__init__.py"
    for path in sorted(file.parent.rglob("*.py")) if is_folder else [file][: module is not None]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if PLACEHOLDER in line:
                yield f"{path.name}:{number} is not filled in: {line[line.index(PLACEHOLDER) :]}"
    if not is_folder:
        return
    if not any((file.parent / place).is_file() for place in ("contract.py", "contract/__init__.py")):
        if "/" not in patch.id:  # whoever has a pack may write one
            yield "contract: the folder has none (contract.py), by which others see that the patch is right"
    elif not isinstance(
        getattr(import_module(f"{module_of(patch.id)}.contract"), "CONTRACT", None), Contract
    ):
        yield "contract: contract.py defines no CONTRACT"


def _words(patch: Patch) -> Iterator[str]:
    if not ID.fullmatch(patch.id):
        yield f"id: {patch.id!r} is not `project.words-with-hyphens`"
    if len(patch.summary) not in _SUMMARY or patch.summary.endswith(".") or "\n" in patch.summary:
        yield f"summary: one line of {_SUMMARY.start} to {_SUMMARY.stop - 1} characters without a full stop"
    if len(patch.why) < _WHY or not patch.why.rstrip().endswith("."):
        yield f"why: sentences of at least {_WHY} characters: what goes wrong, for whom, and what is done"
    if bool(patch.without) != patch.companion:
        yield "without: what a job does without it, which a companion says and nothing else does"
    if not (patch.upstream or patch.companion):  # a companion fixes nothing
        yield "upstream: where upstream discusses it is missing"
    for reference in patch.upstream:
        if not UPSTREAM.fullmatch(reference):
            yield f"upstream: {reference!r} is neither `owner/repo#number` nor `owner/repo@commit`"


def _seen_in_a_job(patch: Patch) -> Iterator[str]:
    for word in {*patch.changes} - {*CHANGES}:
        yield f"changes: {word!r} is none of {', '.join(CHANGES)}"
    if "/" not in patch.id and not patch.evidence.endswith("."):
        yield "evidence: what shows that it is exact, or why it is opt-in, in a sentence"
    if "/" not in patch.id and not (patch.changes and patch.met.endswith(".")):
        yield "changes, met: what changes in a job, and under which settings, in a sentence"


def _targets(patch: Patch) -> Iterator[str]:
    if not patch.targets:
        yield "targets: there is none"
        return
    if patch.targets[0].optional:
        yield "targets: the first one leads, and cannot be optional"
    leading = patch.targets[0].project.name
    project = patch.id.partition("/")[2] or patch.id
    if project.partition(".")[0] != leading.partition("-")[0]:
        yield f"targets: the first one is {leading}, after which the patch is not named"
    serving = {target.project.name: target.serves for target in patch.targets}
    for target in patch.targets:
        name, served = target.project.name, target.serves
        if served and (served == name or serving.get(served, "itself")):
            yield f"{name}: serves: {served!r} is no other target's project, or one that serves another"
        yield from (f"{name}: {text}" for text in _target(target))


def _target(target: Target) -> Iterator[str]:
    names = [variant.name for variant in target.variants]
    if not names or len(names) != len(set(names)):
        yield "it has no variant, or two of one name"
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
