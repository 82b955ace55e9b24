"""What happened in this process, site by site, as data."""

from __future__ import annotations

from overlay.base.record import Record
from overlay.effect import Effect  # noqa: TC001 -- a field type
from overlay.verdict import Verdict  # noqa: TC001 -- a field type

#: States of a patch and of its sites.
STATES: dict[str, str] = {
    "armed": "selected; waits for its modules to be imported",
    "applied": "in place",
    "incomplete": "somebody holds the original and cannot be given the replacement, or replaced a site since",
    "failed": "could not be put in place, or in strict mode not completely; nothing of the patch is left",
    "skipped": "decided against: the verdict says why",
    "reverted": "taken out again by `disable()`",
}


class SiteStatus(Record):
    """One site in this process."""

    site: str
    project: str
    state: str
    #: References to the original that were found elsewhere and now hold the replacement.
    rebound: tuple[str, ...] = ()
    #: References to the original that could not be rebound.
    stale: tuple[str, ...] = ()


class PatchStatus(Record):
    """One patch in this process."""

    patch: str
    revision: int
    state: str
    reason: str = ""
    #: `None` while no module of the patch has been imported.
    verdict: Verdict | None = None
    sites: tuple[SiteStatus, ...] = ()
    #: What it has counted so far; `None` if it counts nothing, or was not put in place.
    effect: Effect | None = None


class Status(Record):
    """The ledger of this process, and the settings it runs under."""

    enabled: bool
    strict: bool
    version: str
    python: str
    pid: int
    selection: tuple[str, ...]
    patches: tuple[PatchStatus, ...]
    #: The lock that this process is held to: a path, or `sha256:` and its digest; empty if it is not.
    pinned: str = ""
    #: Replacements that came here pickled while their patch is not in force here, as sentences.
    half_patched: tuple[str, ...] = ()
    #: Of the selection, the companions that nobody named: one that cannot be applied stops nothing.
    companions: tuple[str, ...] = ()
