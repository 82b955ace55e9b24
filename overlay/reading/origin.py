"""Origins: what a `from` import says of where a name comes from."""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def origin(nodes: Sequence[ast.AST], module: str, *, is_package: bool) -> str:
    """Return the site that a name of a module is imported from, empty if it is not, or by more than that.

    Args:
        nodes: What binds the name.
        module: The module.
        is_package: Whether it is a package, which decides on what its relative imports mean.

    """
    if len(nodes) != 1 or not isinstance(nodes[0], ast.ImportFrom):
        return ""
    imported = nodes[0]
    base = imported.module or ""
    if imported.level:
        package = module.split(".")
        if not is_package:
            package.pop()
        package = package[: len(package) - imported.level + 1]
        base = ".".join([*package, base] if base else package)
    return f"{base}:{imported.names[0].name}"
