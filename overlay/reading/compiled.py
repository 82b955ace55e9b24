"""What a site compiles to, by its source."""

from __future__ import annotations

from overlay.reading.fingerprint import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.reading.source import Tree


def of_source(site: str, tree: Tree) -> list[str]:
    """Return the fingerprints of what the source compiles to at a site that is defined there.

    More than one if the source defines it more than once. Raises `SourceError`.
    """
    module, _, qualname = site.partition(":")
    return inside(tree.code(module), qualname)


def of_definition(site: str, tree: Tree) -> list[str]:
    """Return the same without compiling all of the module, where that can be done; else nothing.

    What has one of those fingerprints was made from that definition; what has not may still have one that
    `of_source` returns. Raises `SourceError`.
    """
    found: list[str] = tree.ask("prints", site)
    return found
