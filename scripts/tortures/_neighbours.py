"""What stands beside the sites of a shape: what they call in their module, and what calls them there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from overlay.patch import Calls, Patch, Variant
from overlay.source.decide import decide, variant_of
from overlay.source.registry import tables
from overlay.source.source import Tree

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def shape_of(patch: Patch, tree: Tree) -> list[str]:
    """Return the sites that must be as tested for a patch to apply to a tree, none if it does not apply."""
    return [
        site
        for variant in _applied(patch, tree)
        for site in (*variant.same, *(item.site for item in variant.replacements if not item.new))
    ]


def relied_on(patch: Patch, tree: Tree) -> list[Calls]:
    """Return the calls that are asked for where a patch applies to a tree, none if it does not apply."""
    return [one for variant in _applied(patch, tree) for one in variant.facts if isinstance(one, Calls)]


def _applied(patch: Patch, tree: Tree) -> list[Variant]:
    verdict = decide(patch, tree, tables())
    found = [variant_of(patch, target) for target in verdict.targets] if verdict.verdict == "apply" else []
    return [variant for variant in found if variant is not None]


def neighbours(sites: list[str], tree: Tree) -> dict[str, str]:
    """Return the sites next to those of a shape, with how: `called`, `calls` or `bound`.

    One step, within the modules of the shape: functions and methods that are mentioned by one of its sites or
    mention one, and what else of the module its sites mention (imports, constants).
    """
    found: dict[str, str] = {}
    for module in dict.fromkeys(site.partition(":")[0] for site in sites):
        parsed = tree._parsed(module).tree
        inside = [site.partition(":")[2] for site in sites if site.partition(":")[0] == module]
        defined = dict(_defined(parsed))
        nodes = {name: defined[name] for name in inside if name in defined}
        for name, node in nodes.items():
            # Sorted: a seed has to lead to the same mutants in every process.
            for mentioned in sorted(_mentioned(node, name, defined)):
                binds = tree.nodes(f"{module}:{mentioned}")
                if binds:
                    how = "called" if mentioned in defined else "bound"
                    found.setdefault(f"{module}:{mentioned}", how)
        last = {name.rpartition(".")[2] for name in inside}
        for name, node in defined.items():
            if isinstance(node, ast.ClassDef):
                continue
            if last & {*_words(node)}:
                found.setdefault(f"{module}:{name}", "calls")
    return {site: how for site, how in found.items() if not any(_covers(known, site) for known in sites)}


def _covers(known: str, site: str) -> bool:
    """Return whether a change of a site changes a known one: it is the same, or one is inside the other."""
    return known == site or site.startswith(f"{known}.") or known.startswith(f"{site}.")


def _defined(parsed: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the functions, classes and methods of a module by their qualified names."""
    for node in parsed.body:
        if isinstance(node, _DEFINITIONS):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, _DEFINITIONS):
                    yield f"{node.name}.{item.name}", item


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the names and attributes that are read in a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _mentioned(node: ast.stmt, name: str, defined: dict[str, ast.stmt]) -> set[str]:
    """Return the names of the module that a node mentions, and the methods of its own class."""
    own = name.partition(".")[0]
    return {word for word in _words(node) if word != name and "." not in word} | {
        f"{own}.{word}" for word in _words(node) if f"{own}.{word}" in defined and f"{own}.{word}" != name
    }
