"""What the conditions of a shape find in a tree, and what stands in the way of a replacement."""

from __future__ import annotations

from overlay.errors import SourceError
from overlay.patch import Calls, Fields, Known, Present
from overlay.reading.shape import split_site
from overlay.verdict import SiteFinding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import Condition
    from overlay.reading.source import Tree


def look(condition: Condition, tree: Tree) -> SiteFinding:
    """Return whether the source meets one condition, and what was found if it does not."""
    finding = SiteFinding(site=condition.site, expects=type(condition).__name__.lower(), holds=False)
    try:
        if isinstance(condition, Known):
            return _look_up(condition, tree, finding)
        if isinstance(condition, Calls):
            found = tree.no_call(condition.site, condition.callee, last=condition.last)
            digest = tree.digest(condition.site) or ""
            asks = f"a call of {condition.callee}{', as its last statement' if condition.last else ''}"
            return finding.replace(holds=not found, digest=digest, found=found, asks=asks)
        if isinstance(condition, Fields):
            found = tree.no_fields(condition.site, condition.names, condition.default)
            digest = tree.digest(condition.site) or ""
            default = f", each {condition.default} by default" if condition.default else ""
            asks = f"what it was made with under {', '.join(condition.names)}{default}"
            return finding.replace(holds=not found, digest=digest, found=found, asks=asks)
        there = tree.has(condition.site)
        if isinstance(condition, Present):
            return finding.replace(holds=there, found="" if there else "does not exist")
        found = "exists" if there else tree.doubt(condition.site)
        return finding.replace(holds=not found, found=found)
    except SourceError as error:
        return finding.replace(found=f"cannot be checked: {error}")


def _look_up(condition: Known, tree: Tree, finding: SiteFinding) -> SiteFinding:
    digest = tree.digest(condition.site)
    if digest is None:
        return finding.replace(found="does not exist")
    if digest in condition.digests:
        return finding.replace(holds=True, digest=digest)
    stars = tree.star(condition.site)
    why = f" (`{stars}` below it may bind it again)" if stars else ""
    return finding.replace(digest=digest, found=f"has an unknown digest {digest}{why}")


def obstacle(site: str, tree: Tree) -> str:
    """Return why what stands at a site at run time cannot be replaced by a function, empty if it can."""
    names = split_site(site)[1].split(".")
    if any(name.startswith("__") and not name.endswith("__") for name in names[1:]):
        return f"{site} has a private name, which Python stores under another one"
    try:
        decorators = tree.decorators(tree.chain(site)[-1])
    except SourceError as error:
        return f"where {site} is defined cannot be checked: {error}"
    for name in decorators:
        if name == "property" or name.endswith((".setter", ".getter", ".deleter")):
            return f"{site} is a property, and no function stands there at run time"
        if name not in ("staticmethod", "classmethod"):
            return (
                f"{site} is decorated (@{name.partition('(')[0]}), and what stands there at run time "
                "need not be the function in the source; replace what it calls, or what looks it up"
            )
    return ""
