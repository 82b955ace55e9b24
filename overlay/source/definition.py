"""The one definition that stands at a site, whatever happens as its module is executed."""

from __future__ import annotations

from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast

    from overlay.source.bindings import Found

_Node = TypeVar("_Node", bound="ast.stmt")


def defined(found: list[Found], kind: type[_Node], word: str) -> _Node | str:
    """Return the definition at a site, or why there is not one of that kind.

    Args:
        found: What binds the site or bears on it.
        kind: The class of its syntax node.
        word: What such a definition is called.

    """
    if not found:
        return "does not exist"
    if len(found) > 1:
        return "is bound more than once, or from outside"
    node = found[0].node
    if not isinstance(node, kind):
        return f"is not a {word} that is defined here"
    if found[0].headers(conditions=True):
        return "is defined under a condition, or in a class that is decorated"
    return node
