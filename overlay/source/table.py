"""The table: the sources that each patch was tested on, and how its rows decide on a source.

A table is a JSON file. The patches of one project have theirs beside them, `tested.json`. `OVERLAY_TRUST`
names another one: a newer table, or what `overlay prove --write` found here. What is read later wins. A table
has two parts:

- `sources`: what was looked at, by its name (a line of the list of releases): `is`, the parts of an image or
  the commit of a head; `versions`, by project; `date`, of the first look.
- `rows`, one a line: see `Row`.

A row decides on a source in one of two ways:

1. By the files: they are those of `on`. Then nothing is parsed, except where an imported name is defined.
2. By the sites: each of `sites` is as it says, and all rows that fit in this way say the same. A row that
   says that nothing is to be done must have all sites that the patch names. If none that the patch replaces
   is there, another one must differ from all rows that apply: else an upstream that moved the functions
   would pass for one that never had the defect.

Else the source is unknown. A row that lacks a site which the patch asks about by now is out of date, and
decides nothing. A row is about one target: `overlay.source.decide` puts the targets of a patch together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256

from overlay.errors import OverlayError, SourceError
from overlay.model.record import TYPE_CHECKING, Record
from overlay.patch import Absent, Calls, Fact, Patch, Target, Variant
from overlay.source.source import LARGEST, Tree, is_endless
from overlay.verdict import APPLY, LOUD, SiteFinding

if TYPE_CHECKING:
    from packaging.version import Version

#: What a row says of a site.
Said = str | bool | None
#: The name of the file beside the patches of a project.
TABLE_FILE = "tested.json"
#: Hexadecimal digits of the digest of files.
LENGTH = 16
_CALLS = "calls "
#: What a row can rest on, each with the sentence that says so.
SHOWN = {
    "passed": "its contract passes with the patch",
    "alone": "upstream does not have the defect",
    "absent": "this source lacks what the patch replaces",
    "read": "somebody has read the source",
}


class Row(Record):
    """The verdict on one patch for one of its projects, on all sources that are alike for the patch."""

    patch: str
    #: The project.
    target: str
    #: `apply`, `not-needed`, or `unknown-source` where a contract failed on sites that pass elsewhere.
    verdict: str
    #: Which variant of the patch applies.
    variant: str = ""
    #: One of `SHOWN`.
    shown: str = ""
    #: More on the evidence, in a sentence; may be empty.
    evidence: str = ""
    #: What was found at each site that is asked about. A digest: the source there has it. `null`: nothing is
    #: there. `true`: something is. `"calls f"`, `"calls f last"`: the function there calls `f` in each run.
    #: A site without a colon is a module.
    sites: Mapping[str, Said] = {}
    #: For each of these names that its module imports: the site that it is imported from.
    imported: Mapping[str, str] = {}
    #: Digest of the patch's code and contract as they were run.
    code: str = ""
    date: str = ""
    #: The sources with the same files, by the digest of all files that the patch names in that project.
    on: Mapping[str, list[str]] = {}
    #: Of a row that was proven on a user's machine: when, with which seeds, and beside which versions.
    proven: str = ""

    @property
    def means(self) -> str:
        """What is done: `apply` with the variant, or the verdict alone."""
        return f"{self.verdict} {self.variant}".strip()

    @property
    def loud(self) -> bool:
        """Whether it says that the source is unknown after all."""
        return self.verdict in LOUD

    @property
    def reason(self) -> str:
        """Why it is so, in a sentence."""
        return self.evidence or SHOWN.get(self.shown, "")

    def sources(self) -> list[str]:
        """Return the names of all its sources."""
        return [name for names in self.on.values() for name in names]

    def findings(self, tree: Tree | None = None) -> tuple[SiteFinding, ...]:
        """Return what was asked of the sites, and with a tree whether it holds there."""
        return tuple(_finding(site, said, tree) for site, said in self.sites.items())

    def fits(self, target: Target, tree: Tree) -> bool:
        """Return whether this row decides on a source by its sites."""
        if self.loud:
            return False
        if self.verdict != APPLY and not set(target.sites()) <= set(self.sites):
            return False
        return all(is_so(site, said, tree) for site, said in self.sites.items())

    def is_current(self, target: Target) -> bool:
        """Return whether this row says of each site of its variant what the variant asks by now."""
        if self.verdict != APPLY or not target.variants:  # a defect, which replaces nothing
            return True
        variant = next((one for one in target.variants if one.name == self.variant), None)
        if variant is None:
            return False
        wanted = without_digest(variant)
        there = {site: self.sites.get(site, False) for site in variant.sites()}
        return all(
            says == wanted[site] if site in wanted else isinstance(says, str) and not says.startswith(_CALLS)
            for site, says in there.items()
        )


class Table:
    """Rows, of which a later one wins: those that `load` returns for a patch, then those in `rows`."""

    def __init__(self, rows: Iterable[Row] = (), load: Callable[[str], Iterable[Row]] = lambda _: ()) -> None:
        self._rows = [*rows]
        self._load = load

    def _of(self, patch: str, project: str) -> list[Row]:
        rows = (*self._load(patch), *self._rows)
        return [row for row in rows if row.patch == patch and row.target == project]

    def find(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row that decides on a project of a patch, `None` if its source is unknown.

        Tells the tree what the row knows of imported names. Raises `SourceError` for what cannot be read.
        """
        row = self.by_files(patch, target, tree) or self.by_sites(patch, target, tree)
        if row is not None and row.verdict == APPLY:
            replaced = [item.site for one in target.variants for item in one.replacements]
            defined = [site for site in replaced if site in row.sites]
            tree.imported.update({**dict.fromkeys(defined, ""), **row.imported})
        return row

    def by_files(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row that has the files of a source, and the same definitions of imported names."""
        digest, named = files_digest(target, tree), target.sites()
        rows = [row for row in self._of(patch.id, target.project.name) if digest in row.on]

        def has_origins(row: Row) -> bool:
            origins = [site for site in row.imported.values() if site in row.sites and site not in named]
            return all(is_so(site, row.sites[site], tree) for site in origins)

        row = next(filter(has_origins, reversed(rows)), None)
        return row if row is not None and row.is_current(target) else None

    def by_sites(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row that decides by the sites, whatever else the files have in them."""
        fit = self.fitting(patch, target, tree)
        return fit[-1] if len({row.means for row in fit}) == 1 else None

    def fitting(self, patch: Patch, target: Target, tree: Tree) -> list[Row]:
        """Return all rows that fit a source by its sites."""
        rows = self.rows(patch, target)
        applying = {item for row in rows if row.verdict == APPLY for item in row.sites.items()}
        replaced = [item.site for one in target.variants for item in one.replacements if not item.new]

        def tells(row: Row) -> bool:
            there = {site: said for site, said in row.sites.items() if said}
            if row.verdict == APPLY or not replaced or any(site in there for site in replaced):
                return bool(there)
            return not there.items() <= applying

        return [row for row in rows if tells(row) and row.fits(target, tree)]

    def rows(self, patch: Patch, target: Target) -> list[Row]:
        """Return the rows of a patch for one of its projects, without those that are out of date."""
        found: dict[frozenset[tuple[str, Said]], Row] = {}
        for row in self._of(patch.id, target.project.name):
            if not row.loud:  # a failed contract counts for exactly its files
                found.pop(frozenset(row.sites.items()), None)
                found[frozenset(row.sites.items())] = row
        return [row for row in found.values() if row.is_current(target)]

    def first_without(self, patch: str, project: str, only: tuple[str, ...] = ()) -> str | None:
        """Return the first release without the defect that a patch fixes, `None` if none is known.

        `patch` may be the id of a defect. With `only`, just what these variants fix counts.
        """
        has: set[Version] = set()
        free: set[Version] = set()
        by_files = {files: row for row in self._of(patch, project) for files in row.on}
        for row in by_files.values():
            mends = row.verdict == APPLY and (not only or row.variant in only)
            for name in row.sources():
                distribution, _, text = name.partition("==")
                if distribution == project and (mends or not row.loud) and (version := _release(text)):
                    (has if mends else free).add(version)
        later = [version for version in free if has and version > max(has)]
        return str(min(later)) if later else None

    def nearest(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row whose sites differ least from a source: one that applies, if there is any."""
        rows = self.rows(patch, target)
        rows = [row for row in rows if row.verdict == APPLY] or rows
        rows.reverse()  # of two that are as near, the newer one
        return min(rows, key=lambda row: misses(row, tree), default=None)


@cache
def _release(text: str) -> Version | None:
    """Return a version, `None` for a commit, an image or a head. Rows name few versions, many times."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


def read(path: str) -> list[Row]:
    """Return the rows of a file. Raises `OSError`, and `OverlayError` for what is no table."""
    return rows_in(contents(path), path)


def contents(path: str) -> bytes:
    """Return what is in a file. Raises `OSError`, also where reading it could take for ever."""
    if is_endless(path):
        raise OSError(f"{path} is no file of at most {LARGEST} bytes")
    with open(path, "rb") as file:
        return file.read()


def rows_in(data: bytes, path: str) -> list[Row]:
    """Return the rows of a file that has been read. Raises `OverlayError` for what is no table."""
    try:
        return [Row(**row) for row in json.loads(data)["rows"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        msg = f"{path} is no table of what patches were tested on: {type(error).__name__}: {error}"
        raise OverlayError(msg) from error


def files_digest(target: Target, tree: Tree) -> str:
    """Return the digest of all files that a patch names in a project. Raises `SourceError`."""
    modules = sorted({site.partition(":")[0] for site in target.sites()})
    texts = [f"{module} {tree.text_digest(module)}" for module in modules]
    return sha256("\n".join(texts).encode()).hexdigest()[:LENGTH]


def without_digest(variant: Variant) -> dict[str, Said]:
    """Return what a row says of those sites of a variant that it gives no digest of."""
    return {fact.site: said(fact) for fact in variant.facts} | {
        one.site: None for one in variant.replacements if one.new
    }


def said(fact: Fact) -> Said:
    """Return a fact as a row says it."""
    if isinstance(fact, Calls):
        return f"{_CALLS}{fact.callee}{' last' if fact.last else ''}"
    return None if isinstance(fact, Absent) else True


def is_so(site: str, said: Said, tree: Tree) -> bool:
    """Return whether a site is as a row says."""
    return not _fault(site, said, tree)


def _fault(site: str, said: Said, tree: Tree) -> str:
    """Return how a site differs from what a row says, empty if it does not."""
    try:
        if said is None or said is True:
            there = tree.presence(site)
            if said:
                return "" if there is True else "does not exist"
            return "exists" if there is True else there or ""
        if str(said).startswith(_CALLS):
            _, callee, *last = str(said).split()
            fault = f"does not call {callee} in each run{' as its last statement' if last else ''}"
            return "" if tree.calls(site, callee, last=bool(last)) else fault
        digest = tree.digest(site)
    except SourceError as error:
        return f"cannot be checked: {error}"
    if digest is None:
        return "does not exist"
    return "" if digest == said else f"has an unknown digest {digest}"


def misses(row: Row, tree: Tree) -> int:
    """Return how many sites of a source are not as a row says."""
    return sum(not is_so(site, said, tree) for site, said in row.sites.items())


def _finding(site: str, said: Said, tree: Tree | None) -> SiteFinding:
    found = "" if tree is None else _fault(site, said, tree)
    expects, asks, digest = "known", "", ""
    if said is None or said is True:
        expects = "absent" if said is None else "present"
    elif str(said).startswith(_CALLS):
        expects, asks = "calls", str(said)
    else:
        digest = str(said)
        if tree is not None and found:
            try:
                digest = tree.digest(site) or ""
            except SourceError:
                digest = ""
    return SiteFinding(site=site, expects=expects, holds=not found, digest=digest, asks=asks, found=found)
