"""What is decided for a patch, as data."""

from __future__ import annotations

from overlay.model.record import Record

APPLY = "apply"
#: All verdicts, and what each means to the person who reads it.
VERDICTS: dict[str, str] = {
    APPLY: "the installed source is one that the patch was tested on",
    "not-needed": "the installed source does not have what the patch fixes, or another patch fixes it",
    "unknown-source": "the patch was not tested on the installed source: nothing is touched",
    "conflict": "another patch, ours or someone else's, stands in its way, or one that it needs is missing",
    "not-installed": "the project is not installed",
    "not-selected": "the selection leaves the patch out",
}

#: Verdicts that say "you asked for this fix and do not have it": logged as warnings, errors in strict mode.
LOUD = frozenset({"unknown-source", "conflict"})


class SiteFinding(Record):
    """What was asked of a site, and whether it is so."""

    site: str
    #: `known`, `present`, `absent` or `calls`.
    expects: str
    holds: bool
    #: Digest of the source that is there, empty if none was asked for.
    digest: str = ""
    #: What was found instead, empty if it holds.
    found: str = ""
    #: What of the site is asked for, empty if that is all of it.
    asks: str = ""


class TargetVerdict(Record):
    """What was decided for one project that a patch touches."""

    project: str
    verdict: str
    reason: str = ""
    #: Version as the project's own files tell it, else as its metadata does; empty if not installed.
    version: str = ""
    #: Version in the installed metadata if that says something else.
    metadata_version: str = ""
    #: Name of the variant that matched, empty if none did.
    variant: str = ""
    optional: bool = False
    findings: tuple[SiteFinding, ...] = ()
    #: A source of the table that is as this one, or is nearest to it; empty if there is none.
    tested_on: str = ""
    #: When and how the patch was proven on this source on a user's machine; else empty.
    trusted: str = ""


class Verdict(Record):
    """What was decided for one patch in one environment."""

    patch: str
    verdict: str
    reason: str = ""
    targets: tuple[TargetVerdict, ...] = ()

    @property
    def loud(self) -> bool:
        """Whether the fix was asked for and is not there."""
        return self.verdict in LOUD

    @property
    def included(self) -> bool:
        """Whether it would apply, if another patch did not do its work too. The first target decides."""
        return self.verdict == "not-needed" and any(one.verdict == APPLY for one in self.targets[:1])

    def where(self) -> str:
        """Return the projects and versions concerned, such as `verl 0.8.0`."""
        named = [t for t in self.targets if t.version and (not t.optional or t.verdict == self.verdict)]
        return ", ".join(f"{target.project} {target.version}" for target in named)


class Plan(Record):
    """The verdicts of all patches in one environment, ordered as they would be applied."""

    #: Folders that were looked at, separated as in PATH; empty for the running interpreter.
    site: str
    selection: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    #: Of the selection, the companions that nobody named: one that cannot be applied stops nothing.
    companions: tuple[str, ...] = ()

    @property
    def loud(self) -> tuple[Verdict, ...]:
        """Return the verdicts that leave out a fix that was asked for, for a reason that needs a person."""
        return tuple(v for v in self.verdicts if v.loud and v.patch not in self.companions)

    @property
    def lost(self) -> tuple[Verdict, ...]:
        """Return the loud verdicts on companions that nobody named."""
        return tuple(v for v in self.verdicts if v.loud and v.patch in self.companions)
