"""Shapes: what of a module's syntax tree a site depends on.

What a name means at run time can depend on more than its definition: on a second one under `if`, on a
decorator of its class, on an assignment from outside. All of that belongs to the shape, so that a digest
that is known stands for one meaning.
"""

from __future__ import annotations

import ast

from overlay.source.bindings import find, is_star

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.source.bindings import Module


def split_site(site: str) -> tuple[str, str]:
    """Return the module and the qualified name of `module:qualname` (the name is empty for a module)."""
    module, _, qualname = site.partition(":")
    return module, qualname


def bindings(module: Module, qualname: str) -> list[ast.AST]:
    """Return what binds `qualname` in a module or bears on it, nothing if nothing binds it.

    That is every definition, import, assignment or deletion of the name, at any depth of `if`, `try`,
    `with`, `match` and loops, also in functions that declare it `global`; what is done to it from outside
    (`Class.method = f`, `setattr`, `f.__code__ = c`); a second life of its class (`Class = deco(Class)`); and
    star imports below it. More than one means that it is decided at run time, so all belong to the shape.
    """
    return [found.node for found in find(module, qualname)]


def shape(module: Module, qualname: str) -> list[object]:
    """Return what the digest of a site is made of, nothing if there is no such site.

    Beside the bindings that is what they stand in: the decorators and keywords of their classes, which can
    put something else there, and if there are several bindings, what decides between them. The bases of a
    class change nothing about what it defines itself.
    """
    found = find(module, qualname)
    parts: list[object] = []
    for item in found:
        parts.append(item.node)
        headers = item.headers(conditions=len(found) > 1)
        if headers:
            parts.append(headers)
    return parts


def exists(module: Module, qualname: str) -> bool:
    """Return whether a site has a value once the module has been executed, as far as its source tells."""
    there = False
    for item in sorted(find(module, qualname), key=lambda item: item.line):
        if item.binds:
            there = True
        elif item.removes and not item.conditional:
            there = False
    return there


def doubt(module: Module, qualname: str) -> str:
    """Return why a site that does not exist may do so all the same, empty if it cannot."""
    stars = star_of(module.star_imports())
    if stars:
        return f"may come from `{stars}`"
    outer = qualname.partition(".")[0]
    others = [
        item.node for item in find(module, outer) if item.binds and not isinstance(item.node, ast.ClassDef)
    ]
    if outer != qualname and others:
        return f"may exist: {outer} is more than a class of this module"
    if any(item.by_function for item in find(module, qualname)):
        return "may be set by a function that declares it global"
    return ""


def star_of(nodes: Iterable[ast.AST]) -> str:
    """Return the first star import among nodes as it is written, empty if there is none."""
    for node in nodes:
        if is_star(node):
            return f"from {'.' * (node.level or 0)}{node.module or ''} import *"
    return ""
