"""The engine: what is selected, what is armed, what is in place.

One lock guards the ledger and every change to an upstream object. It is never held while something is
imported: a factory may import what another thread is importing, and the two would wait for each other.
"""

from __future__ import annotations

import _thread
import os
import sys

from overlay import _log, _settings
from overlay._finder import WatchingFinder, is_executing, when_executed
from overlay._record import TYPE_CHECKING
from overlay._registry import load_patches
from overlay._version import __version__
from overlay.errors import OverlayError, PatchError
from overlay.ledger import PatchStatus, SiteStatus, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from overlay._install import Installed
    from overlay._source import Tree
    from overlay.patch import Patch, Replacement
    from overlay.verdict import Plan, TargetVerdict, Verdict


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


class Engine:
    """Enables a set of patches in this interpreter. The package has one; tests make their own."""

    def __init__(self, load: Callable[[], dict[str, Patch]] = load_patches) -> None:
        self._load = load
        self._lock = _thread.RLock()
        self._patches: dict[str, Patch] | None = None
        self._entries: dict[str, Entry] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._tree: Tree | None = None
        self._finder: WatchingFinder | None = None
        self._watched: dict[str, tuple[str, ...]] = {}
        self._seen: dict[str, ModuleType] = {}
        self._selection: tuple[str, ...] = ()
        self._strict = False
        self._last: tuple[PatchStatus, ...] = ()

    # -- what a user calls ---------------------------------------------------------------------------

    def enable(self, patches: str | Iterable[str] | None = None, strict: bool | None = None) -> Status:
        """Arm the selected patches, and apply those whose modules are there already."""
        if patches is not None and not isinstance(patches, str):
            patches = list(patches)
        with self._lock:
            known = self._known()
            again = self._finder is not None
            if not (again and patches is None):
                selection = _settings.select(known, patches)
            if not (again and strict is None):
                wanted = _settings.strict(strict)
            if again:
                self._same_again(selection if patches is not None else None, wanted if strict is not None else None)
            else:
                level = _settings.log_level()
                _log.set_level(level)
                self._arm([known[name] for name in selection], strict=wanted)
        try:
            self._catch_up()
        except BaseException:
            if not again:
                self.disable()
            raise
        return self.status()

    def disable(self) -> None:
        """Take everything out again, and disarm."""
        with self._lock:
            if self._finder is None:
                return
            self._finder.remove()
            self._finder = None
            for entry in reversed(self._entries.values()):
                _revert(entry)
                if entry.state in ("applied", "incomplete", "armed"):
                    entry.state = "reverted"
            self._last = tuple(_status_of(entry) for entry in self._entries.values())
            self._entries.clear()
            self._verdicts.clear()
            self._watched.clear()
            self._seen.clear()
            self._tree = None

    def plan(self, patches: str | Iterable[str] | None = None, site: str | None = None) -> Plan:
        """Decide on every patch without importing anything of an upstream."""
        from overlay._plan import make_plan
        from overlay._source import InstalledTree

        known = self._known()
        if patches is None and site is None and self._finder is not None:
            selection = self._selection
        else:
            selection = _settings.select(known, patches)
        return make_plan(known.values(), selection, InstalledTree(site), site or "")

    def status(self) -> Status:
        """Return the ledger. Modules that slipped past the import hook are caught up with first."""
        if self._finder is not None:
            self._catch_up()
        with self._lock:
            entries = tuple(_status_of(entry) for entry in self._entries.values())
            return Status(
                enabled=self._finder is not None,
                strict=self._strict,
                version=__version__,
                python=".".join(map(str, sys.version_info[:3])),
                pid=os.getpid(),
                selection=self._selection,
                patches=entries if self._finder is not None else self._last,
            )

    def known(self) -> dict[str, Patch]:
        """Return all patches by id."""
        return dict(self._known())

    # -- arming --------------------------------------------------------------------------------------

    def _known(self) -> dict[str, Patch]:
        if self._patches is None:
            self._patches = self._load()
        return self._patches

    def _same_again(self, selection: tuple[str, ...] | None, strict: bool | None) -> None:
        if (selection is not None and selection != self._selection) or (strict is not None and strict != self._strict):
            msg = (
                f"overlay is already enabled, with patches={','.join(self._selection) or 'none'!r} and "
                f"strict={self._strict}: call overlay.disable() first to change that"
            )
            raise OverlayError(msg)

    def _arm(self, patches: Sequence[Patch], *, strict: bool) -> None:
        from overlay._decide import in_order

        by_id = {patch.id: patch for patch in patches}
        self._entries = {name: Entry(by_id[name]) for name in in_order(by_id)}
        self._selection = tuple(sorted(by_id))
        self._strict = strict
        watched: dict[str, list[str]] = {}
        for name in self._entries:
            for module in _modules(by_id[name]):
                watched.setdefault(module, []).append(name)
        self._watched = {module: tuple(names) for module, names in watched.items()}
        self._finder = WatchingFinder(frozenset(self._watched), self._imported)
        self._finder.install()

    def _catch_up(self) -> None:
        """Handle watched modules that were imported before the hook was there, or past it."""
        for name in tuple(self._watched):
            module = sys.modules.get(name)
            if module is None or self._seen.get(name) is module:
                continue
            if is_executing(module):
                if self._finder is None or name in self._finder.hooked:
                    continue  # being imported right now, by another thread perhaps; the hook reports it
                self._seen[name] = module
                when_executed(module, self._imported)
            else:
                self._imported(module)

    # -- applying ------------------------------------------------------------------------------------

    def _imported(self, module: ModuleType) -> None:
        """Apply what waits for a module that has just been executed.

        Never raises an `ImportError`, and in strict mode raises again if the import is tried again.
        """
        name = module.__name__
        self._seen[name] = module
        for patch in self._watched.get(name, ()):
            entry = self._entries.get(patch)
            if entry is not None:
                self._apply(entry, module)

    def _apply(self, entry: Entry, module: ModuleType) -> None:
        verdict = entry.verdict = entry.verdict or self._decide(entry.patch)
        if verdict.verdict != "apply":
            if entry.state == "armed":
                entry.state, entry.reason = "skipped", verdict.reason
                self._announce_skip(entry, verdict)
            self._refuse(entry, verdict.verdict, loud=verdict.loud)
            return
        if entry.state == "failed":
            self._refuse(entry, "failed", loud=True)
            return
        self._install(entry, verdict, module)

    def _install(self, entry: Entry, verdict: Verdict, module: ModuleType) -> None:
        from overlay._install import ConflictError, install

        replacements = [
            replacement
            for target in verdict.targets
            for replacement in _replacements(entry.patch, target)
            if _module_of(replacement) == module.__name__
        ]
        if not replacements:
            return
        with self._lock:  # an earlier life of this module (before a reload) is history
            entry.installed = [site for site in entry.installed if site.in_place]
            if any(site.site == replacements[0].site and _lives_in(site, module) for site in entry.installed):
                return
        try:
            done = install(entry.label, module, replacements, self._source(), self._lock)
        except Exception as error:  # noqa: BLE001 -- whatever a factory raises must not look like an ImportError
            with self._lock:
                _revert(entry)
                entry.state = "failed"
                entry.reason = f"{type(error).__name__}: {error}" if not isinstance(error, OverlayError) else str(error)
                if isinstance(error, ConflictError):
                    entry.state = "skipped"
                    entry.verdict = verdict.replace(verdict="conflict", reason=entry.reason)
            self._announce_failure(entry, verdict)
            self._refuse(entry, entry.verdict.verdict if entry.state == "skipped" and entry.verdict else "failed", loud=True)
            return
        with self._lock:
            entry.installed += done
            stale = [f"{site.site} is still held by {holder}" for site in done for holder in site.stale]
            if stale and self._strict:
                _revert(entry)
                entry.state, entry.reason = "failed", "; ".join(stale)
            elif stale:
                entry.state, entry.reason = "incomplete", "; ".join(stale)
            elif entry.state == "armed" and self._complete(entry, verdict):
                entry.state = "applied"
        if stale:
            _log.warning(f"incomplete {entry.label} on {verdict.where()}: {entry.reason}; enable overlay earlier")
            self._refuse(entry, "incomplete", loud=self._strict)
        self._announce(entry, verdict)

    def _decide(self, patch: Patch) -> Verdict:
        """Return the verdict on a patch, with those it has to do with taken into account."""
        if patch.id not in self._verdicts:
            from overlay._decide import decide, settle

            tree = self._source()
            chosen = [entry.patch for entry in self._entries.values()]
            settled = settle(chosen, {other.id: decide(other, tree) for other in chosen if _related(patch, other, chosen)})
            self._verdicts[patch.id] = settled[patch.id]
        return self._verdicts[patch.id]

    def _source(self) -> Tree:
        from overlay._source import InstalledTree

        if self._tree is None:
            self._tree = InstalledTree()
        return self._tree

    def _complete(self, entry: Entry, verdict: Verdict) -> bool:
        """Return whether all sites of all targets that are not optional are in place."""
        have = {site.site for site in entry.installed}
        return all(
            replacement.site in have
            for target in verdict.targets
            if not target.optional
            for replacement in _replacements(entry.patch, target)
        )

    def _refuse(self, entry: Entry, what: str, *, loud: bool) -> None:
        if loud and self._strict:
            msg = f"{entry.label} is {what}: {entry.reason} (strict mode; OVERLAY_PATCHES=-{entry.patch.id} leaves it out)"
            raise PatchError(msg)

    # -- the log -------------------------------------------------------------------------------------

    def _announce(self, entry: Entry, verdict: Verdict) -> None:
        """Log each target once, when the last of its sites is in place."""
        have = {site.site for site in entry.installed}
        for target in verdict.targets:
            sites = [replacement.site for replacement in _replacements(entry.patch, target)]
            if sites and target.project not in entry.announced and have.issuperset(sites):
                entry.announced.add(target.project)
                count = f"{len(sites)} site{'s' if len(sites) != 1 else ''}"
                _log.info(f"applied {entry.label} to {target.project} {target.version} ({count})")

    @staticmethod
    def _announce_skip(entry: Entry, verdict: Verdict) -> None:
        where = verdict.where()
        line = f"skipped {entry.label} on {where}: {verdict.verdict}: {verdict.reason}"
        if verdict.loud:
            _log.warning(f"NOT applied {entry.label} to {where}: {verdict.verdict}: {verdict.reason}")
        elif verdict.verdict == "not-installed":
            _log.debug(line)
        else:
            _log.info(line)

    @staticmethod
    def _announce_failure(entry: Entry, verdict: Verdict) -> None:
        what = "conflict" if entry.state == "skipped" else "failed"
        _log.warning(f"NOT applied {entry.label} to {verdict.where()}: {what}: {entry.reason}")


def _modules(patch: Patch) -> list[str]:
    """Return the modules that a patch would change in any variant, in the order of the file."""
    return list(
        dict.fromkeys(
            _module_of(replacement)
            for target in patch.targets
            for variant in target.variants
            for replacement in variant.replacements
        )
    )


def _module_of(replacement: Replacement) -> str:
    return replacement.site.partition(":")[0]


def _replacements(patch: Patch, target: TargetVerdict) -> tuple[Replacement, ...]:
    from overlay._decide import variant_of

    variant = variant_of(patch, target)
    return variant.replacements if variant is not None else ()


def _related(patch: Patch, other: Patch, chosen: Sequence[Patch]) -> bool:
    """Return whether a verdict on `patch` can depend on `other`: shared modules, or a requirement."""
    if other is patch or set(_modules(patch)) & set(_modules(other)):
        return True
    needed, reach = set(patch.requires), set[str]()
    while needed - reach:
        reach |= needed
        needed = {name for candidate in chosen if candidate.id in reach for name in candidate.requires}
    return other.id in reach


def _lives_in(site: Installed, module: ModuleType) -> bool:
    parent = site.parent
    return parent is module or sys.modules.get(getattr(parent, "__module__", "")) is module


def _revert(entry: Entry) -> None:
    for site in reversed(entry.installed):
        if not site.revert():
            _log.warning(f"left {site.site} alone: somebody replaced it after {entry.label}")
    entry.installed.clear()


def _status_of(entry: Entry) -> PatchStatus:
    installed = {site.site: site for site in entry.installed}
    sites: list[SiteStatus] = []
    verdict = entry.verdict
    for target in verdict.targets if verdict is not None else ():
        for replacement in _replacements(entry.patch, target):
            site = installed.get(replacement.site)
            state = entry.state if entry.state in ("failed", "skipped", "reverted") else "armed"
            if site is not None:
                state = "incomplete" if site.stale else "applied"
            sites.append(
                SiteStatus(
                    site=replacement.site,
                    project=target.project,
                    state=state,
                    rebound=site.rebound if site is not None else (),
                    stale=site.stale if site is not None else (),
                )
            )
    return PatchStatus(
        patch=entry.patch.id,
        revision=entry.patch.revision,
        state=entry.state,
        reason=entry.reason,
        verdict=verdict,
        sites=tuple(sites),
    )
