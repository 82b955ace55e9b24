"""A session: what lies between `enable()` and `disable()` in one interpreter.

One lock guards the ledger and every change to an upstream object. It is never held while something is
imported: a factory may import what another thread is importing, and the two would wait for each other. What
goes on in one module is kept to one thread by a lock of that module's own, as the import system does it.
"""

from __future__ import annotations

import _thread
import sys

from overlay import _log
from overlay._decide import decide, in_order, settle, variant_of
from overlay._finder import WatchingFinder, is_executing, when_executed
from overlay._record import TYPE_CHECKING
from overlay.errors import OverlayError, PatchError
from overlay.ledger import PatchStatus, SiteStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from overlay._install import Installed
    from overlay._source import Tree
    from overlay.patch import Patch, Replacement
    from overlay.verdict import TargetVerdict, Verdict


class Entry:
    """What the ledger holds of one selected patch."""

    def __init__(self, patch: Patch) -> None:
        self.patch = patch
        self.verdict: Verdict | None = None
        self.state = "armed"
        self.reason = ""
        self.installed: list[Installed] = []
        self.announced: set[str] = set()

    @property
    def label(self) -> str:
        """Return the patch as the log names it."""
        return f"{self.patch.id}@{self.patch.revision}"

    def revert(self) -> None:
        """Take out every site, the last one first."""
        for site in reversed(self.installed):
            if not site.revert():
                _log.warning(f"left {site.site} alone: somebody replaced it after {self.label}")
        self.installed.clear()

    def status(self) -> PatchStatus:
        """Return this entry as data."""
        return PatchStatus(
            patch=self.patch.id,
            revision=self.patch.revision,
            state=self.state,
            reason=self.reason,
            verdict=self.verdict,
            sites=tuple(self._sites()),
        )

    def _sites(self) -> list[SiteStatus]:
        installed = {site.site: site for site in self.installed}
        waiting = self.state if self.state in ("failed", "skipped", "reverted") else "armed"
        sites = []
        for target, replacement in sites_of(self.patch, self.verdict):
            site = installed.get(replacement.site)
            state = waiting if site is None else "incomplete" if site.stale else "applied"
            rebound, stale = (site.rebound, site.stale) if site is not None else ((), ())
            sites.append(
                SiteStatus(
                    site=replacement.site, project=target.project, state=state, rebound=rebound, stale=stale
                )
            )
        return sites


class Session:
    """The selected patches, armed, and what became of them."""

    def __init__(self, patches: Sequence[Patch], *, strict: bool) -> None:
        by_id = {patch.id: patch for patch in patches}
        self.selection = tuple(sorted(by_id))
        self.strict = strict
        self.entries = {name: Entry(by_id[name]) for name in in_order(by_id)}
        self._lock = _thread.RLock()
        self._closed = False
        self._tree: Tree | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._seen: dict[str, ModuleType] = {}
        self._busy: dict[str, _thread.RLock] = {}
        self._watched: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            for module in _modules(entry.patch):
                self._watched.setdefault(module, []).append(entry)
        self._finder = WatchingFinder(frozenset(self._watched), self._imported)
        self._finder.install()

    def close(self) -> None:
        """Take everything out again."""
        with self._lock:
            self._closed = True
            self._finder.remove()
            for entry in reversed(self.entries.values()):
                entry.revert()
                if entry.state in ("applied", "incomplete", "armed"):
                    entry.state = "reverted"

    def status(self) -> tuple[PatchStatus, ...]:
        """Return the ledger."""
        with self._lock:
            return tuple(entry.status() for entry in self.entries.values())

    def catch_up(self) -> None:
        """Handle watched modules that were imported before the hook was there, or past it."""
        for name in self._watched:
            module = sys.modules.get(name)
            if module is None or self._seen.get(name) is module or self._closed:
                continue
            if not is_executing(module):
                self._imported(module)
            elif name not in self._finder.hooked:  # else another thread imports it, and the hook reports it
                self._seen[name] = module
                when_executed(module, self._imported)

    # -- applying ------------------------------------------------------------------------------------

    def _imported(self, module: ModuleType) -> None:
        """Apply what waits for a module that has just been executed.

        Never raises an `ImportError`, and in strict mode raises again if the import is tried again.
        """
        name = module.__name__
        if self._closed:
            return
        with self._lock:
            busy = self._busy.setdefault(name, _thread.RLock())
        with busy:
            for entry in self._watched.get(name, ()):
                self._apply(entry, module)
            self._seen[name] = module

    def _apply(self, entry: Entry, module: ModuleType) -> None:
        verdict = entry.verdict = entry.verdict or self._decide(entry.patch)
        if verdict.verdict != "apply":
            if entry.state == "armed":
                entry.state, entry.reason = "skipped", verdict.reason
                _announce_skip(entry, verdict)
            self._refuse(entry, verdict.verdict, loud=verdict.loud)
        elif entry.state == "failed":
            self._refuse(entry, "failed", loud=True)
        else:
            self._install(entry, verdict, module)

    def _install(self, entry: Entry, verdict: Verdict, module: ModuleType) -> None:
        from overlay._install import prepare, put

        mine = [item for _, item in sites_of(entry.patch, verdict) if _module_of(item) == module.__name__]
        with self._lock:  # an earlier life of this module (before a reload) is history
            entry.installed = [site for site in entry.installed if site.in_place]
            there = {site.site for site in entry.installed if _lives_in(site, module)}
        if there.issuperset(replacement.site for replacement in mine):
            return
        try:
            sites = prepare(entry.label, module, mine, self._source())
            with self._lock:
                if self._closed:
                    return
                put(sites)
                entry.installed += sites
        except Exception as error:  # noqa: BLE001 -- whatever a factory raises must not look like an ImportError
            self._fail(entry, verdict, error)
            return
        self._record(entry, verdict, sites)

    def _fail(self, entry: Entry, verdict: Verdict, error: Exception) -> None:
        """Take out all of a patch after one of its sites could not be put in place."""
        from overlay._install import ConflictError

        what = "failed"
        with self._lock:
            entry.revert()
            entry.reason = (
                str(error) if isinstance(error, OverlayError) else f"{type(error).__name__}: {error}"
            )
            entry.state = "failed"
            if isinstance(error, ConflictError):
                what, entry.state = "conflict", "skipped"
                entry.verdict = verdict.replace(verdict="conflict", reason=entry.reason)
        _log.warning(f"NOT applied {entry.label} to {verdict.where()}: {what}: {entry.reason}")
        self._refuse(entry, what, loud=True)

    def _record(self, entry: Entry, verdict: Verdict, sites: Sequence[Installed]) -> None:
        """Say what became of the sites that were just put in place."""
        stale = [f"{site.site} is still held by {holder}" for site in sites for holder in site.stale]
        with self._lock:
            have = {site.site for site in entry.installed}
            if stale:
                entry.state, entry.reason = "incomplete", "; ".join(stale)
                if self.strict:
                    entry.revert()
                    entry.state = "failed"
            elif entry.state == "armed" and _complete(entry, verdict, have):
                entry.state = "applied"
        if stale:
            _log.warning(
                f"incomplete {entry.label} on {verdict.where()}: {entry.reason}; enable overlay earlier"
            )
            self._refuse(entry, "incomplete", loud=True)
        else:
            _announce(entry, verdict, have)

    def _refuse(self, entry: Entry, what: str, *, loud: bool) -> None:
        if loud and self.strict:
            way_out = f"strict mode; OVERLAY_PATCHES=-{entry.patch.id} leaves it out"
            msg = f"{entry.label} is {what}: {entry.reason} ({way_out})"
            raise PatchError(msg)

    # -- deciding ------------------------------------------------------------------------------------

    def _decide(self, patch: Patch) -> Verdict:
        """Return the verdict on a patch, with those it has to do with taken into account."""
        if patch.id not in self._verdicts:
            tree = self._source()
            chosen = [entry.patch for entry in self.entries.values()]
            related = [other for other in chosen if _related(patch, other, chosen)]
            self._verdicts[patch.id] = settle(related, {other.id: decide(other, tree) for other in related})[
                patch.id
            ]
        return self._verdicts[patch.id]

    def _source(self) -> Tree:
        from overlay._source import InstalledTree

        if self._tree is None:
            self._tree = InstalledTree()
        return self._tree


def sites_of(patch: Patch, verdict: Verdict | None) -> list[tuple[TargetVerdict, Replacement]]:
    """Return what is to be replaced according to a verdict, target by target."""
    found = []
    for target in verdict.targets if verdict is not None else ():
        variant = variant_of(patch, target)
        found += [
            (target, replacement) for replacement in (variant.replacements if variant is not None else ())
        ]
    return found


def _modules(patch: Patch) -> list[str]:
    """Return the modules that a patch would change in any variant, in the order of the file."""
    variants = [variant for target in patch.targets for variant in target.variants]
    return list(dict.fromkeys(_module_of(item) for variant in variants for item in variant.replacements))


def _module_of(replacement: Replacement) -> str:
    return replacement.site.partition(":")[0]


def _complete(entry: Entry, verdict: Verdict, have: set[str]) -> bool:
    """Return whether all sites of all targets that are not optional are in place."""
    return all(item.site in have for target, item in sites_of(entry.patch, verdict) if not target.optional)


def _related(patch: Patch, other: Patch, chosen: Sequence[Patch]) -> bool:
    """Return whether a verdict on `patch` can depend on `other`: shared modules, or a requirement."""
    if other is patch or set(_modules(patch)) & set(_modules(other)):
        return True
    reach, needed = set[str](), set(patch.requires)
    while needed - reach:
        reach |= needed
        needed = {name for candidate in chosen if candidate.id in reach for name in candidate.requires}
    return other.id in reach


def _lives_in(site: Installed, module: ModuleType) -> bool:
    """Return whether a site belongs to this very module object, and not to one that was imported before."""
    parent = site.parent
    return parent is module or sys.modules.get(getattr(parent, "__module__", "")) is module


def _announce(entry: Entry, verdict: Verdict, have: set[str]) -> None:
    """Log each target once, when the last of its sites is in place."""
    for target in verdict.targets:
        sites = [item.site for owner, item in sites_of(entry.patch, verdict) if owner is target]
        if sites and target.project not in entry.announced and have.issuperset(sites):
            entry.announced.add(target.project)
            count = f"{len(sites)} site{'s' if len(sites) != 1 else ''}"
            _log.info(f"applied {entry.label} to {target.project} {target.version} ({count})")


def _announce_skip(entry: Entry, verdict: Verdict) -> None:
    where = verdict.where()
    if verdict.loud:
        _log.warning(f"NOT applied {entry.label} to {where}: {verdict.verdict}: {verdict.reason}")
    elif verdict.verdict == "not-installed":
        _log.debug(f"skipped {entry.label}: not-installed: {verdict.reason}")
    else:
        _log.info(f"skipped {entry.label} on {where}: {verdict.verdict}: {verdict.reason}")
