"""The rules that every patch is held to, in this repository and in packs.

Nothing is left of the template, what is replaced is known by its source, and there is a test that fails as
long as the patch is needed.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from overlay.patch import CHANGES, Absent, Calls, Contract, Fields, Known
from overlay.reading.digest import DIGEST_LENGTH
from overlay.verdict import LOUD, VERDICTS

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
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")
_SUMMARY = range(10, 91)
_WHY = 80


def faults(patch: Patch, tests: Path) -> list[str]:
    """Return a sentence for each rule that a patch breaks, nothing if it is of the form.

    Args:
        patch: The patch.
        tests: A folder, or a file in it, above which the path of the patch's removal test begins.

    """
    return [
        *_placeholders(patch, tests),
        *_contract(patch),
        *_words(patch),
        *_seen_in_a_job(patch),
        *_removal(patch, tests),
        *_targets(patch),
    ]


def removal_file(patch: Patch, tests: Path) -> Path | None:
    """Return the file of a patch's removal test, `None` if there is none in or above `tests`."""
    path = patch.remove.test.partition("::")[0]
    places = (folder / path for folder in (tests, *tests.parents))
    return next((place for place in places if place.is_file()), None)


def _placeholders(patch: Patch, tests: Path) -> Iterator[str]:
    """Look into what defines the patch, each file of its folder if it has one, and into its test."""
    files = {Path(file) for module in _modules(patch) if (file := getattr(module, "__file__", None))}
    folder = _folder(patch)
    if folder is not None:
        files |= {path for path in folder.rglob("*.py") if "__pycache__" not in path.parts}
    test = removal_file(patch, tests)
    for file in sorted({*files, *([test] if test else [])}):
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


def _removal(patch: Patch, tests: Path) -> Iterator[str]:
    if not patch.remove.when or patch.remove.when.endswith("."):
        yield "remove.when: what must have happened upstream, without a full stop"
    try:
        Version(patch.remove.version or "0")
    except InvalidVersion:
        yield f"remove.version: {patch.remove.version!r} is no version"
    file, name = removal_file(patch, tests), patch.remove.test.partition("::")[2].partition("[")[0]
    if file is None:
        yield f"remove.test: there is no file {patch.remove.test.partition('::')[0]!r}"
        return
    body = ast.parse(file.read_text(encoding="utf-8")).body
    test = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if test is None:
        yield f"remove.test: {file.name} has no function {name!r}"
    elif "xfail" not in _marks(test, body):
        yield f"remove.test: {name} is not marked as one that is expected to fail (pytest.mark.xfail)"


def _marks(test: ast.FunctionDef, body: list[ast.stmt]) -> str:
    """Return the decorators of a test as text, with what its file says of the names in them."""
    names = {
        node.id
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Name)
    }
    said: list[ast.AST] = [*test.decorator_list]
    for node in body:
        bound = node.targets if isinstance(node, ast.Assign) else []
        own = {item.id for item in bound if isinstance(item, ast.Name)} | {getattr(node, "name", "")}
        said += [node] if own & names else []
    return "\n".join(map(ast.unparse, said))


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
    if not any(variant.verdict == "apply" for variant in target.variants):
        yield "no variant applies"
    shapes = [(variant.versions, variant.shape) for variant in target.variants]
    if len(shapes) != len(set(shapes)):
        yield "two variants have the same versions and shape"
    for variant in target.variants:
        yield from (f"variant {variant.name!r}: {text}" for text in (*_variant(variant), *_sites(variant)))


def _variant(variant: Variant) -> Iterator[str]:
    try:
        SpecifierSet(variant.versions)
    except InvalidSpecifier:
        yield f"versions: {variant.versions!r} is no range of versions"
    if variant.verdict not in VERDICTS or variant.verdict in LOUD - {"unsupported"}:
        yield f"verdict: {variant.verdict!r} cannot be said beforehand"
    if not variant.shape:
        yield "shape: a version alone does not identify an upstream"
    if variant.verdict == "apply" and variant.reason:
        yield "reason: it applies, which needs none"
    if variant.verdict != "apply" and not variant.reason:
        yield f"reason: why it is {variant.verdict} is missing"
    if (variant.verdict == "apply") != bool(variant.replacements):
        yield "replacements: what applies has some, and nothing else does"


def _sites(variant: Variant) -> Iterator[str]:
    for condition in variant.shape:
        if not _SITE.fullmatch(condition.site):
            yield f"shape: {condition.site!r} is not `module:qualname`"
        digests = condition.digests if isinstance(condition, Known) else ("0" * DIGEST_LENGTH,)
        if not digests or not all(_DIGEST.fullmatch(digest) for digest in digests):
            yield f"shape: {condition.site} has no digest of a source that was tested"
    sites = [replacement.site for replacement in variant.replacements]
    if len(sites) != len(set(sites)):
        yield "replacements: a site is replaced twice"
    yield from _relied_on(variant)
    known = {condition.site for condition in variant.shape if isinstance(condition, Known)}
    absent = {condition.site for condition in variant.shape if isinstance(condition, Absent)}
    for replacement in variant.replacements:
        if replacement.site not in (absent if replacement.new else known):
            what = "Absent" if replacement.new else "Known"
            yield f"shape: {replacement.site} is replaced, and not in the shape as {what}"
        # Inside a class Python stores a private name under another one.
        inner = replacement.site.partition(":")[2].split(".")[1:]
        if any(name.startswith("__") and not name.endswith("__") for name in inner):
            yield f"replacements: {replacement.site} is a private name"


def _relied_on(variant: Variant) -> Iterator[str]:
    known = {condition.site for condition in variant.shape if isinstance(condition, Known)}
    for condition in variant.shape:
        callee = f"{condition.site.partition(':')[0]}:{getattr(condition, 'callee', '')}"
        if isinstance(condition, Calls) and callee not in known:
            yield f"shape: {condition.site} is to call {callee}, which is not in the shape as Known"
        if isinstance(condition, Fields) and not condition.names:
            yield f"shape: {condition.site} is asked for no field"
