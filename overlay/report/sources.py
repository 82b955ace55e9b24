"""The source at a site, before and after: upstream's own, and the function that replaces it."""

from __future__ import annotations

import ast
import inspect
import textwrap

from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import OverlayError
from overlay.report import diffs

if TYPE_CHECKING:
    from overlay.patch import Replacement
    from overlay.reading.source import Tree
    from overlay.report.diffs import Line


class SiteSource(Record):
    """One replaced site."""

    site: str
    #: Its source in the upstream's file; empty where nothing stands or the source is not at hand.
    before: str
    #: The function that takes its place.
    after: str
    #: Whether that calls what stood there.
    calls_original: bool
    #: Whether nothing stood there.
    new: bool
    #: The difference: of what calls what stood there, and of what is new, each line is added.
    diff: tuple[Line, ...] = ()
    #: Why there is no source before, empty if there is.
    missing: str = ""


def site_source(replacement: Replacement, tree: Tree, digest: str) -> SiteSource:
    """Return both sources of a site. `digest` is what was decided on: another source is not shown for it."""
    before, missing = ("", "") if replacement.new else _before(replacement.site, tree, digest)
    after, calls_original, name = _after(replacement)
    alone = calls_original or not before
    diff = diffs.around(after, name) if alone else diffs.unified(before, after)
    return SiteSource(
        site=replacement.site,
        before=before,
        after=after,
        calls_original=calls_original,
        new=replacement.new,
        diff=diff,
        missing=missing,
    )


def upstream_source(site: str, tree: Tree) -> str:
    """Return the source of a site in the upstream's file, empty if there is none to be read."""
    return _before(site, tree, "")[0]


def _before(site: str, tree: Tree, digest: str) -> tuple[str, str]:
    try:
        found, nodes = tree.digest(site), tree.nodes(site)
        text = tree.source(site.partition(":")[0]) or ""
    except OverlayError as error:
        return "", str(error)
    if digest and found != digest:
        return "", f"the source that was decided on (digest {digest}) is not on this machine"
    segments = [segment for node in nodes if (segment := _segment(text, node))]
    return "\n\n".join(segments), "" if segments else "there is no source here"


def _segment(text: str, node: ast.AST) -> str:
    """Return the lines of a definition, its decorators included, without their indentation."""
    start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    decorators = [item.lineno for item in getattr(node, "decorator_list", ())]
    lines = text.splitlines()[min([start, *decorators]) - 1 : end] if start else []
    return textwrap.dedent("\n".join(lines))


def _after(replacement: Replacement) -> tuple[str, bool, str]:
    """Return the function that a factory returns, whether it uses the original, and under which name.

    In doubt that is the factory.
    """
    try:
        text = textwrap.dedent(inspect.getsource(replacement.make))
        factory = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return f"# {replacement.make!r}", False, ""
    if not isinstance(factory, ast.FunctionDef):
        return text.rstrip(), True, ""
    first = factory.args.args[0].arg if factory.args.args else ""
    last = factory.body[-1]
    name = last.value.id if isinstance(last, ast.Return) and isinstance(last.value, ast.Name) else ""
    inner = next((n for n in factory.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
    uses = any(isinstance(node, ast.Name) and node.id == first for node in ast.walk(inner or factory))
    return (_segment(text, inner) if inner else text.rstrip()), uses, first if uses else ""
