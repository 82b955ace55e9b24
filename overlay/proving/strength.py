"""What a contract is worth in place of digests, and which parameters a patch was written for: as measured.

The record ships with overlay. `./scripts/torture trusted` measures the mutants, `./scripts/matrix trust`
reads the parameters from the releases.
"""

from __future__ import annotations

import ast
import copy
import json
from hashlib import sha256

from overlay.base.record import TYPE_CHECKING, Record
from overlay.catalogue.packs import named
from overlay.catalogue.registry import COMPAT

if TYPE_CHECKING:
    from typing import Any

    from overlay.patch import Replacement
    from overlay.reading.source import Tree

#: Beside `overlay.compat`'s modules.
RECORD = "trust.json"
#: Of the mutants that digests refuse, the share that a contract may let pass, and how many have to be tried.
LARGEST_SHARE = 0.1
FEWEST = 20
#: What of a syntax node is read, and how that is written down.
_READS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Name: ("id", "{}"),
    ast.Attribute: ("attr", ".{}"),
    ast.keyword: ("arg", "{}="),
    ast.alias: ("name", "import {}"),
    ast.ImportFrom: ("module", "from {}"),
}


class Strength(Record):
    """What became of the mutants of a patch that digests refuse, had its contract been believed."""

    #: Mutants of the sites that the patch knows by digest, each of another meaning, that reach the contract.
    tried: int
    #: Of these, on how many the patch would have been trusted.
    passed: int
    #: Day.
    run: str
    #: Revision of the patch that was measured.
    revision: int

    @property
    def share(self) -> float:
        """Return the part that would have been trusted."""
        return self.passed / self.tried if self.tried else 1.0


def record() -> dict[str, dict[str, Any]]:
    """Return the record: by patch, `parameters` of its sites and `mutants`. A pack may ship its own."""
    found = _read(COMPAT)
    for pack in named():
        own = _read(pack.package).items()
        found |= {name: entry for name, entry in own if name.startswith(f"{pack.name}/")}
    return found


def _read(package: str) -> dict[str, dict[str, Any]]:
    """Return the record in a package, empty if there is none."""
    from importlib.resources import files

    try:
        text = files(package).joinpath(RECORD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def strength(entry: dict[str, Any]) -> Strength | None:
    """Return what is recorded of the mutants of a patch, `None` if nothing is."""
    found = entry.get("mutants")
    return None if found is None else Strength(**found)


def too_weak(found: Strength | None, revision: int) -> str:
    """Return why a contract is not enough to trust a patch on an unknown source, empty if it is."""
    if found is None:
        why = "it has not been measured how many changed sources its contract lets pass"
    elif found.revision != revision:
        why = f"its contract was measured with revision {found.revision}, and this is {revision}"
    elif found.tried < FEWEST:
        why = f"its contract was measured on {found.tried} changed sources, and {FEWEST} are asked"
    elif found.share > LARGEST_SHARE:
        why = (
            f"of {found.tried} changed sources that digests refuse, its contract lets {found.passed} pass "
            f"({found.share:.0%}; the limit is {LARGEST_SHARE:.0%})"
        )
    else:
        return ""
    return f"too weak a proof: {why}"


def parameters(site: str, tree: Tree) -> str | None:
    """Return the parameters of the function at a site, without annotations, `None` if there is none."""
    nodes = tree.nodes(tree.chain(site)[-1])
    if len(nodes) != 1 or not isinstance(nodes[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    given = copy.deepcopy(nodes[0].args)
    for part in ast.walk(given):
        if isinstance(part, ast.arg):
            part.annotation = None
    word = "async " if isinstance(nodes[0], ast.AsyncFunctionDef) else ""
    return f"{word}({ast.unparse(given)})"


def reads(site: str, tree: Tree) -> set[str]:
    """Return what the function at a site reads: names not its own, attributes, keywords, texts and numbers.

    A setting that an upstream asks for, and a feature that it adds, is seen in one of these.
    """
    parts = [part for node in tree.nodes(tree.chain(site)[-1]) for part in ast.walk(node)]
    own = {part.arg for part in parts if isinstance(part, ast.arg)}
    own |= {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    docstrings = {id(part.value) for part in parts if isinstance(part, ast.Expr)}
    return {_told(part) for part in parts if id(part) not in docstrings} - own - {""}


def mark(read: str) -> str:
    """Return what stands on record for something that is read: no text of an upstream's."""
    return sha256(read.encode()).hexdigest()[:8]


def _told(part: ast.AST) -> str:
    """Return what a node by itself reads, empty if nothing."""
    if isinstance(part, ast.Constant):
        return "" if part.value is None or isinstance(part.value, bool) else repr(part.value)
    field, form = _READS.get(type(part), ("", ""))
    name = getattr(part, field, None)
    return form.format(name) if name else ""


def other(entry: dict[str, Any], replacements: tuple[Replacement, ...], tree: Tree) -> str:
    """Return which replaced site takes or reads what no known source of it does, empty if none does."""
    for item in replacements:
        if item.new:
            continue
        found, known = parameters(item.site, tree), entry.get("parameters", {}).get(item.site, ())
        if found is None or found not in known:
            said = " or ".join(known) or "not on record"
            return f"{item.site} takes {found or 'what cannot be told'}; the patch was written for {said}"
        marks = entry.get("reads", {}).get(item.site, "").split()
        if more := {one for one in reads(item.site, tree) if mark(one) not in marks}:
            said = ", ".join(sorted(more)[:3])
            return f"{item.site} reads {said}, as no source does that the patch was written for"
    return ""
