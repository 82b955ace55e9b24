"""Origins: what a `from` import says of where a name comes from."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    #: The level of a `from` import, the module that it names, and the name that is imported.
    Imported = tuple[int, str, str]


def origin(imported: Imported | None, module: str, *, is_package: bool) -> str:
    """Return the site that a name of a module is imported from, empty if it is not, or by more than that.

    Args:
        imported: The import that alone binds the name, if that is so.
        module: The module.
        is_package: Whether it is a package, which decides on what its relative imports mean.

    """
    if imported is None:
        return ""
    level, base, name = imported
    if level:
        package = module.split(".")
        if not is_package:
            package.pop()
        package = package[: len(package) - level + 1]
        base = ".".join([*package, base] if base else package)
    return f"{base}:{name}"
