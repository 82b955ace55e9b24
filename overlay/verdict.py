"""What is decided for a patch, as data."""

from __future__ import annotations

from overlay.base.record import Record

#: All verdicts, and what each means to the person who reads it.
VERDICTS: dict[str, str] = {
    "apply": "the installed source is one that the patch was written for",
    "fixed-upstream": "the installed release carries the fix",
    "superseded": "the installed release replaced the code that was wrong",
    "not-affected": "the installed release does not have the code that was wrong",
    "not-installed": "the project is not installed",
    "unsupported": "the project is installed, and the patch does not know its source: nothing is touched",
    "conflict": "another patch, ours or someone else's, wants or holds the same site",
    "expired": "the patch has outlived its removal version and does not know the installed source",
    "not-selected": "the selection leaves the patch out",
}

#: Verdicts that say "you asked for this fix and do not have it": logged as warnings, errors in strict mode.
LOUD = frozenset({"unsupported", "conflict", "expired"})


class SiteFinding(Record):
    """One condition of a shape, and whether the source meets it."""

    site: str
    #: `known`, `present`, `absent`, `calls` or `fields`: what was asked.
    expects: str
    holds: bool
    #: Digest of the site's source, empty if there is no such site or none was needed.
    digest: str = ""
    #: What was found instead, empty if it holds.
    found: str = ""
    #: What of the site is asked for, empty if that is all of it.
    asks: str = ""
    #: Whether the patch does not know this digest, and is trusted on it: it was proven here.
    trusted: bool = False


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
    #: When and how the patch was proven here, of a source that it does not know; else empty.
    trusted: str = ""


class Verdict(Record):
    """What was decided for one patch in one environment."""

    patch: str
    revision: int
    verdict: str
    reason: str = ""
    targets: tuple[TargetVerdict, ...] = ()

    @property
    def loud(self) -> bool:
        """Whether the fix was asked for and is not there."""
        return self.verdict in LOUD

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
    #: Hexadecimal SHA-256 of what was decided: patches, revisions, versions, variants and sources.
    #: Two processes with one digest run the same code at every site.
    digest: str
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
