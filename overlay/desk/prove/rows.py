"""Rows of the table from runs of contracts: what a patch is on a source that it was not tested on.

A row is written if the contract was run there, and it holds with the patch or on upstream alone. It is also
written, without a run, if nothing that the patch replaces is there yet. If an earlier release had that, it
may have moved: then the contract is run on upstream alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise, product

from packaging.version import InvalidVersion, Version

from overlay.errors import OverlayError, SourceError, TrustError
from overlay.model.record import Record
from overlay.model.whole import write_whole
from overlay.patch import Patch, Target, Variant
from overlay.source.decide import decide
from overlay.source.registry import of_code
from overlay.source.source import Tree
from overlay.source.table import (
    Row,
    Table,
    contents,
    files_digest,
    is_so,
    misses,
    rows_in,
    said,
    without_digest,
)
from overlay.verdict import APPLY


class Trial(Record):
    """A patch on a source that it was not tested on, with the rows that may come of it."""

    patch: str
    #: Why nothing can be tried, empty if something can.
    refused: str = ""
    #: The rows for each choice of variants, the likeliest first: a row for each project.
    choices: tuple[tuple[Row, ...], ...] = ()
    #: The rows if upstream alone keeps the contract.
    alone: tuple[Row, ...] = ()
    #: The rows without any run, if nothing that it replaces is there.
    absent: tuple[Row, ...] = ()


def trial(patch: Patch, tree: Tree, table: Table, name: str) -> Trial:
    """Return what is to be tried of a patch on a source that its table does not know.

    `name` is what the source is called in the rows.
    """
    found = decide(patch, tree, table)
    here = {
        target: one.version
        for target, one in zip(patch.targets, found.targets, strict=True)
        if one.verdict == "unknown-source"
    }
    if not here:
        what = "it applies here already" if found.verdict == APPLY else found.verdict
        return Trial(patch=patch.id, refused=f"{what}: {found.reason}".removesuffix(": "))
    try:
        blank = {target: _blank(patch, target, tree, name) for target in here}
        alone = tuple(row.replace(shown="alone") for row in blank.values())
        # A record of a defect replaces nothing, and what a patch adds was never there.
        gone = [one for one in here if (old := _replaced(one)) and not any(map(tree.has, old))]
        for target in gone:
            if earlier := _applied_before(patch, target, here[target], table):
                why = f"nothing that it replaces is there, and {earlier} had it"
                return Trial(patch=patch.id, refused=why, alone=alone)
        if gone:
            return Trial(patch=patch.id, absent=tuple(blank[one].replace(shown="absent") for one in gone))
        choices = []
        for target, version in here.items():
            fit = [one for one in target.variants if not _misfit(one, tree)]
            if not fit:
                why = "; ".join(f"{one.name}: {_misfit(one, tree)}" for one in target.variants)
                why = f"no variant of it fits {target.project.name} {version} ({why})"
                return Trial(patch=patch.id, refused=why, alone=alone)
            fit.sort(key=lambda one: _distance(one, patch, target, tree, table))
            choices.append([_applied(one, target, blank[target], tree) for one in fit])
    except SourceError as error:
        return Trial(patch=patch.id, refused=str(error))
    return Trial(patch=patch.id, choices=tuple(product(*choices)), alone=alone)


def _replaced(target: Target) -> list[str]:
    """Return the sites of an upstream that any variant replaces."""
    return [item.site for one in target.variants for item in one.replacements if not item.new]


def _blank(patch: Patch, target: Target, tree: Tree, name: str) -> Row:
    """Return a row that says that a source needs nothing."""
    return Row(
        patch=patch.id,
        target=target.project.name,
        verdict="not-needed",
        sites={site: tree.digest(site) for site in target.sites()},
        code=of_code(patch.id),
        on={files_digest(target, tree): [name]},
    )


def _applied_before(patch: Patch, target: Target, version: str, table: Table) -> str:
    """Return a source on which a patch applied, of no later release than `version`, or nothing."""
    sources = [name for row in table.rows(patch, target) if row.verdict == APPLY for name in row.sources()]
    try:
        here = Version(version)
    except InvalidVersion:  # it may be later than any release
        return sources[-1] if sources else ""
    for name in reversed(sources):
        with suppress(InvalidVersion):  # a commit or an image: nobody knows how old it is
            if Version(name.partition("==")[2]) <= here:
                return name
    return ""


def _applied(variant: Variant, target: Target, blank: Row, tree: Tree) -> Row:
    """Return the row of a source on which a variant applies."""
    sites = without_digest(variant)
    telling = {*target.replaced(), *target.tells, *variant.sites()}
    for site in target.sites():
        # A site that only other variants rely on says nothing of this one, unless it is missing.
        if site not in sites and (site in telling or not tree.has(site)):
            sites[site] = tree.digest(site)
    ours = {site.partition(":")[0] for site in target.sites()}
    names = [*variant.relied_on(), *(item.site for item in variant.replacements if not item.new)]
    hops = [hop for name in names for hop in pairwise(tree.chain(name))]
    # Of an imported name, a site has the import alone. What it is counts too, unless it is another project's.
    for site, origin in hops:
        if origin.partition(".")[0] == site.partition(".")[0] and (digest := tree.digest(origin)):
            sites.setdefault(origin, digest)
    return blank.replace(
        verdict=APPLY,
        variant=variant.name,
        shown="passed",
        sites=dict(sorted(sites.items())),
        imported={site: origin for site, origin in hops if site.partition(":")[0] in ours},
    )


def _misfit(variant: Variant, tree: Tree) -> str:
    """Return why a source cannot be one of a variant, empty if it can."""
    for fact in variant.facts:
        if not is_so(fact.site, said(fact), tree):
            return f"{fact.site} is not as {type(fact).__name__} says"
    for item in variant.replacements:
        if tree.has(item.site) == item.new:
            return f"{item.site} {'is there already' if item.new else 'does not exist'}"
        if wrong := "" if item.new else tree.obstacle(item.site):
            return wrong
    return next((f"{site} does not exist" for site in variant.same if not tree.has(site)), "")


def _distance(variant: Variant, patch: Patch, target: Target, tree: Tree, table: Table) -> int:
    """Return how many sites differ from the nearest source on which a variant applied."""
    known = (row for row in table.rows(patch, target) if row.variant == variant.name)
    return min((misses(row, tree) for row in known), default=len(target.sites()))


def unjudged(rows: Iterable[Row], patch: Patch, table: Table) -> list[str]:
    """Return the replaced sites, in rows that apply, that differ from all that the patch was tested on."""
    targets = {target.project.name: target for target in patch.targets}
    found = []
    for row in rows:
        known = [one for one in table.rows(patch, targets[row.target]) if one.verdict == APPLY]
        seen = {item for one in known for item in one.sites.items()}
        replaced = targets[row.target].replaced() if row.verdict == APPLY else ()
        found += [site for site, said in row.sites.items() if site in replaced and (site, said) not in seen]
    return found


def text_of(sources: Mapping[str, object], rows: Iterable[Row]) -> str:
    """Return the text of a table: a line for each source and each row, without the row's empty fields."""
    plain = [{key: value for key, value in row.to_dict().items() if value} for row in rows]
    return '{{"sources": {{\n{}\n}},\n"rows": [\n{}\n]}}\n'.format(
        ",\n".join(f"  {json.dumps(name)}: {json.dumps(what)}" for name, what in sources.items()),
        ",\n".join(map(json.dumps, plain)),
    )


class File(Record):
    """A table as it is in its file."""

    sources: Mapping[str, object] = {}
    rows: tuple[Row, ...] = ()

    @classmethod
    def read(cls, path: str) -> File:
        """Return a file, empty if there is none. Raises `TrustError` for what is no table."""
        try:
            data = contents(path)
            rows = rows_in(data, path)
        except FileNotFoundError:
            return cls()
        except (OSError, OverlayError) as error:
            raise TrustError(f"{error}; correct it, or name another file") from error
        return cls(sources=json.loads(data).get("sources", {}), rows=tuple(rows))

    def plus(self, rows: Iterable[Row]) -> File:
        """Return the file with more rows: they replace what it said of the same sources."""
        new = [*rows]
        gone = {(row.patch, row.target, digest) for row in new for digest in row.on}
        kept = [row for row in self.rows if not {(row.patch, row.target, key) for key in row.on} & gone]
        return self.replace(rows=(*kept, *new))

    def write(self, path: str) -> None:
        """Write the whole of it, or leave what was there. Raises `TrustError`."""
        try:
            write_whole(path, text_of(self.sources, self.rows).encode())
        except OSError as error:
            raise TrustError(f"{path} cannot be written: {error}") from error
