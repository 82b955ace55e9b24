"""Mutants by patch and release, and the verdict on each."""

from __future__ import annotations

import ast
import itertools
import pickle
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from overlay.patch import Calls, Patch
from overlay.source.decide import decide
from overlay.source.registry import tables
from overlay.source.shape import split_site
from overlay.source.source import Tree
from overlay.source.table import Table
from tortures import _breaking, _mutations
from tortures._neighbours import neighbours, relied_on, shape_of
from tortures._upstreams import Changed, Pristine, Release, replaced, spliced

#: Where a mutant is: in what the shape knows, or in what it asks something of, or next to that.
INSIDE, RELIED = "inside", "relied on"


class Mutant(NamedTuple):
    """A release with one statement changed, and what is decided on it for one patch."""

    patch: str
    release: Release
    kind: str
    #: The site that was changed, and how it stands to the shape: `inside`, `relied on`, `called`, `calls`
    #: or `bound`.
    site: str
    where: str
    #: The statement that was changed, and what stands in its place, with a comment above it.
    old: ast.stmt
    new: list[ast.stmt]
    comment: str
    verdict: str
    reason: str
    #: What tells this mutant from those of other releases that came to the same.
    identity: tuple[str, ...]

    @property
    def module(self) -> str:
        """Return the module that was changed."""
        return split_site(self.site)[0]

    def text(self, pristine: Tree) -> str:
        """Return the source of the module as it is now."""
        return spliced(pristine.source(self.module) or "", self.old, self.new, self.comment)


class Attack(NamedTuple):
    """One patch on one release."""

    patch: Patch
    release: Release
    pristine: Pristine
    #: Trees of other releases, from which the statements of a half applied fix are taken.
    others: Sequence[Tree]
    seed: str

    def mutants(self, beside: int) -> Iterator[Mutant]:
        """Yield the mutants of each site of the shape, and `beside` next to that."""
        sites = shape_of(self.patch, self.pristine)
        known = tuple(f"{site} {self.pristine.digest(site)}" for site in sites)
        for site in filter(self.pristine.is_first, sites):
            for made in mutants_of(site, self.pristine, self.others, self.seed):
                yield from self._decided(site, INSIDE, made, known)
        asked = [one for one in relied_on(self.patch, self.pristine) if self.pristine.is_first(one.site)]
        for condition in asked:
            for made in breaking(condition, self.pristine):
                yield from self._decided(condition.site, INSIDE, made, known)
            for made in mutants_of(condition.site, self.pristine, self.others, self.seed):
                yield from self._decided(condition.site, RELIED, made, known)
        sites += [one.site for one in asked if one.site not in sites]
        near = neighbours(sites, self.pristine)
        found = self._near({site: how for site, how in near.items() if self.pristine.is_first(site)}, known)
        yield from itertools.islice(found, beside)

    def _near(self, near: dict[str, str], known: tuple[str, ...]) -> Iterator[Mutant]:
        """Yield mutants next to the shape. A turn gives each neighbour one, of a kind that it has not had."""
        draw = random.Random(f"{self.seed}/{self.patch.id}/{self.release.name}")
        order = draw.sample(list(near), len(near))
        kinds = {site: draw.sample(list(_mutations.KINDS), len(_mutations.KINDS)) for site in order}
        for turn in range(len(_mutations.KINDS)):
            for site in order:
                for made in mutants_of(site, self.pristine, (), self.seed, (kinds[site][turn],)):
                    yield from self._decided(site, near[site], made, known)

    def _decided(self, site: str, where: str, made: Made, known: tuple[str, ...]) -> Iterator[Mutant]:
        """Yield a mutant with the verdict on it, unless the change came to nothing, or to another release."""
        tree = Changed(self.pristine, split_site(site)[0], replaced(made.parsed, made.old, made.new))
        changed = tree.digest(site)
        half = made.kind == _mutations.HALF
        if half and changed in {other.digest(site) for other in self.others}:
            return
        same = changed == self.pristine.digest(site)
        if same and not made.breaks and made.kind not in _mutations.HARMLESS:
            return
        if half and changed in known_at(self.patch, site, tables()):
            # Half of a fix may be what upstream had between two releases: a source that is known.
            where = RELIED
        verdict = decide(self.patch, tree, tables())
        yield Mutant(
            self.patch.id, self.release, made.kind, site, where, made.old, made.new, made.comment,
            verdict.verdict, verdict.reason, (self.patch.id, made.kind, site, str(changed), *known),
        )  # fmt: skip


def known_at(patch: Patch, site: str, table: Table) -> set[object]:
    """Return what the rows of a patch have found at a site."""
    return {row.sites.get(site) for target in patch.targets for row in table.rows(patch, target)}


class Made(NamedTuple):
    """A statement of a module, and what is put in its place."""

    kind: str
    parsed: ast.Module
    old: ast.stmt
    new: list[ast.stmt]
    comment: str
    #: Whether it takes away what a condition asks for, which need not be in the digest of the site.
    breaks: bool = False


def breaking(condition: Calls, tree: Tree) -> Iterator[Made]:
    """Yield the mutants in which what a condition asks for is not so any more."""
    (bound,) = tree.nodes(condition.site)
    parsed = tree._parsed(split_site(condition.site)[0]).tree
    assert isinstance(bound, ast.stmt)
    kept = pickle.dumps(bound)
    for kind, change in _breaking.breaking(condition).items():
        new = change(pickle.loads(kept), condition)  # noqa: S301 -- as below
        yield Made(kind, parsed, bound, new, "", breaks=True)


def mutants_of(
    site: str, tree: Tree, others: Sequence[Tree], seed: str, kinds: Iterable[str] = _mutations.KINDS
) -> Iterator[Made]:
    """Yield mutants of a site, one of each kind that there can be."""
    bound = tree.nodes(site)[:1]
    parsed = tree._parsed(split_site(site)[0]).tree
    if not bound or not isinstance(bound[0], ast.stmt):
        return
    old = _statement_at(parsed, bound[0])
    is_import = isinstance(old, (ast.Import, ast.ImportFrom))
    kept = pickle.dumps(bound[0])
    for kind in kinds:
        draw = random.Random(f"{seed}/{site}/{kind}/{tree.digest(site)}")
        new = _mutations.KINDS[kind](pickle.loads(kept), draw)  # noqa: S301 -- written two lines above
        if new is not None:
            comment = f"Was: {ast.unparse(old)}" if kind == _mutations.COMMENT else ""
            yield Made(kind, parsed, old, [old, *new[1:]] if is_import else new, comment)
    for other in others:
        if other.digest(site) not in (None, tree.digest(site)):
            draw = random.Random(f"{seed}/{site}/half/{tree.digest(site)}")
            newer = other.nodes(site)
            whole = newer[0] if len(newer) == 1 else None
            half = _mutations.half_of(old, whole, draw) if isinstance(whole, ast.stmt) else None
            if half is not None:
                yield Made(_mutations.HALF, parsed, old, half, "")
            return


def _statement_at(parsed: ast.Module, node: ast.stmt) -> ast.stmt:
    """Return the statement of a tree that a node stands for: of an import, it is but one name."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return node
    where = node.lineno, node.col_offset
    return next(
        one for one in ast.walk(parsed) if isinstance(one, ast.stmt) and (one.lineno, one.col_offset) == where
    )
