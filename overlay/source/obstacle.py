"""What keeps a site from being replaced, as its source tells."""

from __future__ import annotations

from overlay.source.shape import split_site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.source.source import Tree


def obstacle(site: str, tree: Tree) -> str:
    """Return why what stands at a site at run time cannot be replaced by a function, empty if it can."""
    names = split_site(site)[1].split(".")
    if any(name.startswith("__") and not name.endswith("__") for name in names[1:]):
        return f"{site} has a private name, which Python stores under another one"
    for name in tree.decorators(tree.chain(site)[-1]):
        if name == "property" or name.endswith((".setter", ".getter", ".deleter")):
            return f"{site} is a property, and no function stands there at run time"
        if name not in ("staticmethod", "classmethod"):
            return (
                f"{site} is decorated (@{name.partition('(')[0]}), and what stands there at run time "
                "need not be the function in the source; replace what it calls, or what looks it up"
            )
    if len(tree.nodes(tree.chain(site)[-1])) > 1:
        return f"{site} is bound more than once, and which of them runs cannot be told"
    return ""
