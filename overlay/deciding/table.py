"""The table: what each patch was tested on, as a machine wrote it down, and deciding by it.

A table is a JSON file. The patches of one project have theirs beside them, `tested.json`; any other file of
this form may be read after it, and what is read later wins. It has two parts:

- `sources`: what was looked at, by its name (a line of the list of releases): `is`, the parts of an image or
  the commit of a head; `versions`, by project; `date`, of the first look.
- `rows`, one a line. A row says what one patch (`patch`) is to one of the projects that it touches
  (`target`), on all the sources that are alike for it:
  - `verdict`, one of `overlay.verdict.VERDICTS`; `variant`, which variant of the patch that is; `evidence`,
    how it came out, in a sentence; `contract`, the digest of the contract that was run; `date`.
  - `sites`: what was found at each site that is replaced or relied on. A digest: the source there has it.
    `null`: nothing is there. `true`: something is there. `"calls f"`, `"calls f last"`: the function there
    calls `f` in each run. A site without a colon is a module. What the patch names for other variants is
    there too: `null` for what is not there, a digest for what would be replaced or is where upstream mends.
  - `imported`, of names that a module of these sites imports: the site that each is imported from.
  - `on`: digests of all files that the patch names in that project, each with the sources that have them.

A row decides on a source in one of two ways:

1. The files are those of `on`. Then nothing is parsed.
2. Or every one of `sites` is as it says. Only what is quiet is decided in this way, and only where all rows
   that fit say the same. A row that says that nothing is to be done (any quiet verdict but `apply`) has all
   sites that the patch names, and one of them at least is there: else an upstream that moved everything
   would be taken for one that never had the fault.

Else the source is unknown. A row of another state of the patch, one that replaces what the row does not
have, decides nothing. Rows are of targets: what they mean together, `overlay.deciding.decide` says.
"""

from __future__ import annotations

from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import OverlayError, SourceError
from overlay.verdict import LOUD, SiteFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from overlay.patch import Patch, Target
    from overlay.reading.source import Tree

    #: What a row says of a site.
    Said = str | bool | None

#: The name of the file beside the patches of a project.
NAME = "tested.json"
#: Hexadecimal digits of the digest of files.
LENGTH = 16
_CALLS = "calls "


class Row(Record):
    """A row, as it is in the file."""

    patch: str
    target: str
    verdict: str
    variant: str = ""
    evidence: str = ""
    sites: Mapping[str, Said] = {}
    imported: Mapping[str, str] = {}
    contract: str = ""
    date: str = ""
    on: Mapping[str, list[str]] = {}

    @property
    def means(self) -> str:
        """What is done: `apply` with the variant, `nothing`, or the loud verdict."""
        if self.verdict == "apply":
            return f"{self.verdict} {self.variant}"
        return self.verdict if self.verdict in LOUD else "nothing"

    def findings(self) -> tuple[SiteFinding, ...]:
        """Return what was found at the sites."""
        return tuple(_finding(site, said) for site, said in self.sites.items())

    def fits(self, target: Target, tree: Tree) -> bool:
        """Return whether a source is, by its sites, one that this row decides on."""
        if self.verdict in LOUD or not any(self.sites.values()):
            return False
        if self.verdict != "apply" and not set(named(target)) <= set(self.sites):
            return False
        return all(_is_so(site, said, tree) for site, said in self.sites.items())

    def serves(self, target: Target) -> bool:
        """Return whether this row is of the patch as it is: it has what its variant replaces."""
        variant = next((one for one in target.variants if one.name == self.variant), None)
        if variant is None or variant.verdict != self.verdict:
            return self.verdict in LOUD
        return all(item.site in self.sites for item in variant.replacements)


class Table:
    """Rows of one or more files."""

    def __init__(self, rows: Iterable[Row]) -> None:
        #: Of each patch and project: the rows by files, and by sites. What comes later wins.
        self._by_files: dict[tuple[str, str], dict[str, Row]] = {}
        self._by_sites: dict[tuple[str, str], dict[frozenset[tuple[str, Said]], Row]] = {}
        for row in rows:
            about = (row.patch, row.target)
            self._by_files.setdefault(about, {}).update(dict.fromkeys(row.on, row))
            self._by_sites.setdefault(about, {})[frozenset(row.sites.items())] = row

    def find(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row that decides on a project of a patch, `None` if its source is unknown.

        What a row knows of imported names, the tree is told. Raises `SourceError` for what cannot be read.
        """
        about = (patch.id, target.project.name)
        row = self._by_files.get(about, {}).get(files_digest(target, tree))
        if row is None or not row.serves(target):
            row = self.by_sites(patch, target, tree)
        if row is not None and row.verdict == "apply":
            tree.imported.update({**dict.fromkeys(row.sites, ""), **row.imported})
        return row

    def by_sites(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row that decides by the sites, whatever else the files have in them."""
        fit = self.fitting(patch, target, tree)
        return fit[-1] if len({row.means for row in fit}) == 1 else None

    def fitting(self, patch: Patch, target: Target, tree: Tree) -> list[Row]:
        """Return all rows whose sites are those of a source."""
        rows = self._by_sites.get((patch.id, target.project.name), {}).values()
        return [row for row in rows if row.serves(target) and row.fits(target, tree)]


class Tables:
    """The tables of all projects, each asked for when one of its patches is decided on."""

    def __init__(self, of: Callable[[str], Table | None]) -> None:
        """Take what returns the table in which the patch with an id is, `None` if there is none."""
        self._of = of

    def find(self, patch: Patch, target: Target, tree: Tree) -> Row | None:
        """Return the row that decides on a project of a patch, `None` if its source is unknown."""
        table = self._of(patch.id)
        return None if table is None else table.find(patch, target, tree)


if TYPE_CHECKING:
    #: What patches were tested on, of one project or of all.
    Tested = Table | Tables


def read(paths: Iterable[str]) -> Table:
    """Return the table of some files; what is read later wins. Raises `OverlayError` for what is no table."""
    return Table([row for path in paths for row in rows_of(path)])


def rows_of(path: str) -> list[Row]:
    """Return the rows of a file. Raises `OverlayError` for what is no table."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise OverlayError(f"{path} cannot be read: {error}") from error
    return rows_in(data, path)


def rows_in(data: bytes, path: str) -> list[Row]:
    """Return the rows of a file that has been read. Raises `OverlayError` for what is no table."""
    import json

    try:
        return [Row(**row) for row in json.loads(data)["rows"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        msg = f"{path} is no table of what patches were tested on: {type(error).__name__}: {error}"
        raise OverlayError(msg) from error


def named(target: Target) -> list[str]:
    """Return the sites that a patch names in a project, in whatever variant."""
    said = [part.site for one in target.variants for part in (*one.shape, *one.replacements)]
    return sorted(set(said))


def files_digest(target: Target, tree: Tree) -> str:
    """Return the digest of all files that a patch names in a project. Raises `SourceError`."""
    from hashlib import sha256

    modules = sorted({site.partition(":")[0] for site in named(target)})
    texts = [f"{module} {tree.text_digest(module)}" for module in modules]
    return sha256("\n".join(texts).encode()).hexdigest()[:LENGTH]


def _is_so(site: str, said: Said, tree: Tree) -> bool:
    try:
        if said is None:
            return not tree.has(site) and not tree.doubt(site)
        if said is True:
            return tree.has(site)
        if str(said).startswith(_CALLS):
            _, callee, *last = str(said).split()
            return not tree.no_call(site, callee, last=bool(last))
        return tree.digest(site) == said
    except SourceError:
        return False


def _finding(site: str, said: Said) -> SiteFinding:
    if said is None or said is True:
        return SiteFinding(site=site, expects="absent" if said is None else "present", holds=True)
    if str(said).startswith(_CALLS):
        return SiteFinding(site=site, expects="calls", holds=True, asks=str(said))
    return SiteFinding(site=site, expects="known", holds=True, digest=str(said))
