"""What happened in this process, site by site, as data."""

from __future__ import annotations

from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.text import counted, table, wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.effect import Effect
    from overlay.verdict import Verdict

#: States of a patch and of its sites.
STATES: dict[str, str] = {
    "waiting": "selected; waits for all its modules to be imported",
    "applied": "in place",
    "incomplete": "somebody holds the original and cannot be given the replacement, or replaced a site since",
    "failed": "could not be put in place, or in strict mode not completely; nothing of the patch is left",
    "skipped": "decided against: the verdict says why",
    "reverted": "taken out again by `disable()`",
}

#: What is said of a replacement in a process that is half-patched.
CAME = "came here pickled by a process that is patched"


class SiteStatus(Record):
    """One site in this process."""

    site: str
    project: str
    state: str
    #: Whether what replaced it since holds the replacement, as a wrapper that calls it does.
    wrapped: bool = False


class PatchStatus(Record):
    """One patch in this process."""

    patch: str
    state: str
    reason: str = ""
    #: `None` while no module of the patch has been imported.
    verdict: Verdict | None = None
    sites: tuple[SiteStatus, ...] = ()
    #: What it has counted so far; `None` if it counts nothing, or was not put in place.
    effect: Effect | None = None

    @property
    def in_force(self) -> bool:
        """Whether calls reach it at each site that was imported, as far as can be told."""
        wrapped = all(site.wrapped for site in self.sites if site.state == "incomplete")
        return self.state == "applied" or ((self.state == "incomplete" or self.has_begun) and wrapped)

    @property
    def has_begun(self) -> bool:
        """Whether it is in place in some of its modules, and waits for the others."""
        return self.state == "waiting" and any(site.state == "applied" for site in self.sites)

    @property
    def was_whole(self) -> bool:
        """Whether it is in place, or was until `disable()`, which gives what was incomplete a reason."""
        return self.state == "applied" or self.has_begun or (self.state == "reverted" and not self.reason)

    @property
    def lack(self) -> str:
        """Its state if calls do not reach it, and will not; else empty."""
        return "" if self.state == "waiting" or self.in_force else self.state

    def why(self) -> str:
        """Return what explains its state."""
        if self.reason or self.sites:
            return self.reason or counted(len(self.sites), "site")
        where = self.verdict.where() if self.verdict is not None else ""
        return f"waits for {where}" if where else "waits for its modules to be imported"


class Met(Record):
    """A known defect that affects the job of this process, by the settings that its upstream has parsed."""

    defect: str
    harm: str
    #: `mended`, `open` or `unknown-source`.
    state: str
    #: The settings by which the job hits it.
    why: str
    #: What to do about it; empty where it is patched.
    way_out: str = ""
    #: The patch that fixes it, or would.
    patch: str = ""

    def now(self, patches: Iterable[PatchStatus]) -> Met:
        """Return it as it is now: a patch that is not in force any more fixes nothing."""
        for one in patches:
            if one.patch == self.patch and self.state == "mended" and one.lack:
                return self.replace(state="open", way_out=f"{self.patch} is {one.lack}")
        return self


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
    #: Replacements that came here pickled while their patch is not in force here, as `site of patch`.
    half_patched: tuple[str, ...] = ()
    #: Of the selection, the companions that nobody named: one that cannot be applied stops nothing.
    companions: tuple[str, ...] = ()
    #: The known defects that affect this job; empty on all ranks but the first.
    met: tuple[Met, ...] = ()
    #: Only in a ledger's file: the digest of `overlay`'s code, patches included, and of each `pack NAME`.
    code: Mapping[str, str] = {}

    def __str__(self) -> str:
        """Return all of it as text of 80 columns: patches whose project is not installed share a line."""
        mode = "not enabled" if not self.enabled else "strict" if self.strict else "not strict"
        head = f"overlay {self.version} on Python {self.python}, {mode}"
        counts = [(state, sum(one.state == state for one in self.patches)) for state in STATES]
        said = ", ".join(f"{count} {state}" for state, count in counts if count)
        rows, absent = [], dict[str, int]()
        for one in self.patches:
            if one.state == "skipped" and one.verdict and one.verdict.verdict == "not-installed":
                absent[one.reason] = absent.get(one.reason, 0) + 1
            else:
                rows.append((one.patch, one.state, one.why()))
        remarks = [
            *(f"left out, {reason}: {count}" for reason, count in sorted(absent.items())),
            *([f"pinned to {self.pinned}"] if self.pinned else []),
            *(f"half-patched: {what} {CAME}" for what in self.half_patched),
        ]
        lines = [wrap(f"{head}: {said}" if said else head), table(("patch", "state", "why"), rows)]
        return "\n".join([*lines, *map(wrap, remarks)])
