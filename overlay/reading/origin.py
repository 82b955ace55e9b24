"""Origins: where a site is defined that another module imports from there."""

from __future__ import annotations

import ast

from overlay.reading.shape import split_site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.reading.source import Tree


def defined_at(site: str, tree: Tree) -> tuple[str, str]:
    """Return the module and qualified name where a site is defined: it may be a `from` import.

    Raises `SourceError` if one of the modules in between cannot be read.
    """
    return split_site(tree.chain(site)[-1])


def import_chain(site: str, tree: Tree) -> list[str]:
    """Return a site and, while it is a `from` import, the site that it is imported from."""
    chain = [site]
    while True:
        module, _ = split_site(chain[-1])
        nodes = tree.nodes(chain[-1])
        if len(nodes) != 1 or not isinstance(nodes[0], ast.ImportFrom):
            return chain
        imported = nodes[0]
        base = imported.module or ""
        if imported.level:
            package = module.split(".")
            if not tree.is_package(module):
                package.pop()
            package = package[: len(package) - imported.level + 1]
            base = ".".join([*package, base] if base else package)
        origin = f"{base}:{imported.names[0].name}"
        if origin in chain:  # two modules that import the name from each other
            return chain
        chain.append(origin)
