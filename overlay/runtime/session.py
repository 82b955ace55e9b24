"""A session: what lies between `enable()` and `disable()` in one interpreter.

One lock guards the ledger and every change to an upstream object. It is never held while something is
imported: a factory may import what another thread is importing, and the two would wait for each other. What
goes on in one module is kept to one thread by a lock of that module's own, as the import system does it.
"""

from __future__ import annotations

import _thread
import os
import sys
from types import ModuleType

from overlay import log
from overlay.effect import load as load_effect
from overlay.errors import OverlayError, PatchError, PinError
from overlay.model.collector import modules_with_functions, paused
from overlay.model.record import TYPE_CHECKING
from overlay.runtime.finder import WatchingFinder, spec_of
from overlay.runtime.patch_state import ENDED, Entry
from overlay.source.registry import PACK, module_of
from overlay.source.selection import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from overlay.ledger import PatchStatus
    from overlay.patch import Patch
    from overlay.records.pin import Pin
    from overlay.source.selection import Selection
    from overlay.source.source import InstalledTree
    from overlay.source.table import Table
    from overlay.verdict import Verdict

#: Seconds for which `enable()` waits for another thread that is busy with a module. Not for ever: that thread
#: may be waiting for an import of ours.
PATIENCE = 10.0
#: Why a module is not patched that is run: by what compiles it itself, or keeps it apart from all modules.
_BY_OTHERS = (
    "run as __main__ by something that overlay cannot follow (such as a profiler or debugger): start it "
    "without that, or call overlay.enable() in the script, after its definitions"
)


def _nothing() -> None:
    """Do nothing."""


class Session:
    """The selected patches, armed, and what became of them."""

    def __init__(  # noqa: PLR0913 -- what a process was asked for, and what it knows
        self,
        patches: Sequence[Patch],
        chosen: Selection,
        *,
        table: Table,
        at_start: bool = False,
        strict: bool,
        strict_given: bool = False,
        pin: Pin | None = None,
        on_first_module: Callable[[], None] = _nothing,
        on_module: Callable[[], None] = _nothing,
    ) -> None:
        """Arm the patches of a selection.

        `table`: what they were tested on. `at_start`: as in `WatchingFinder`. `strict_given`: strict mode is
        an argument of `enable()`.
        `on_first_module` is called before the first module is looked at that a patch is for, `on_module`
        after each.
        """
        by_id = {patch.id: patch for patch in patches}
        self.chosen = chosen
        self.strict = strict
        self._strict_given = strict_given
        self._pin = pin
        self._table = table
        self._on_first_module = on_first_module
        #: Whether a module has been looked at that a patch is for: the verdicts are those it goes by.
        self.has_begun = False
        self._on_module = on_module
        self.entries = {name: Entry(by_id[name]) for name in in_order(by_id)}
        #: Whether it is being taken out, or has been.
        self.closed = False
        self._tree: InstalledTree | None = None
        self._verdicts: dict[str, Verdict] = {}
        #: By name, and by what it is called where it is run instead of imported.
        self._seen: dict[tuple[str, str], object] = {}
        self._watched: dict[str, list[Entry]] = {}
        self.renew_locks()
        for entry in self.entries.values():
            for module in entry.patch.modules():
                self._watched.setdefault(module, []).append(entry)
        #: Modules that were executed before, or more than once: functions of an earlier life may be anywhere.
        self._lived = modules_with_functions(_perhaps_imported(self._watched))
        self._finder = WatchingFinder(
            frozenset(self._watched), self._imported, at_start=at_start, passed=self.catch_up_late
        )
        self._finder.install()

    def renew_locks(self) -> None:
        """Make the locks: at first, and in the child of a fork, where a thread that held one is gone."""
        self._lock = _thread.RLock()
        self._busy: dict[str, _thread.RLock] = {}

    @property
    def pinned(self) -> str:
        """What this process is held to, empty if it is not."""
        return "" if self._pin is None else self._pin.name

    def close(self) -> None:
        """Take everything out again. After an interruption it can be called once more."""
        with self._lock:
            self.closed = True
            self._finder.remove()
            for entry in reversed(self.entries.values()):
                entry.revert()
                if entry.state not in ENDED:
                    entry.state = "reverted"

    def status(self, *, wait: bool = True) -> tuple[PatchStatus, ...]:
        """Return the ledger, with each site as it is now."""
        with self._lock:
            for entry in self.entries.values():
                entry.settle()
            return tuple(entry.status(wait=wait) for entry in self.entries.values())

    def catch_up_late(self) -> None:
        """Catch up, and name what came past the hook and is patched only now."""
        late = self.missed()
        try:
            self.catch_up()
        finally:
            late = [n for n in late if any(entry.state == "applied" for entry in self._watched[n])]
            if late:
                log.warning(
                    f"{', '.join(late)} was imported past overlay, by a finder that stands before it on "
                    "sys.meta_path: it is patched only now"
                )

    def missed(self) -> list[str]:
        """Return the watched modules that were imported past the hook and have not been handled."""
        seen = {id(module) for module in self._seen.values()}
        there = [(name, sys.modules.get(name)) for name in self._watched if not self._finder.has_met(name)]
        return sorted(name for name, module in there if module is not None and id(module) not in seen)

    def catch_up(self, patience: float = 0.0) -> None:
        """Handle watched modules that were imported before the hook was there, or past it.

        Raises `PatchError` in strict mode, once all of them have been looked at.
        """
        refused: PatchError | None = None
        there = [(name, sys.modules.get(name)) for name in self._watched]
        main = sys.modules.get("__main__")
        run = self._finder.running(getattr(main, "__dict__", {}))[0] if patience else ""
        for name, module in [*there, (run, main)]:
            if self.closed or not name or module is None:
                continue
            if module is not main and not self._finder.has_executed(name, module):
                continue
            try:
                self._imported(name, module, patience)
            except PatchError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    # -- applying ------------------------------------------------------------------------------------

    def _imported(  # noqa: C901 -- one module, from the first look to the last word
        self, name: str, module: object, patience: float | None = None
    ) -> None:
        """Apply what waits for a module that has been executed.

        Never raises an `ImportError`, and in strict mode raises again if the import is tried again. With
        `patience` it is no import that calls: then it gives up if another thread is busy with the module for
        longer than that, and leaves alone what it has seen.
        """
        if self.closed:
            return
        with self._lock:
            busy = self._busy.setdefault(name, _thread.RLock())
        if not busy.acquire(timeout=-1 if patience is None else patience):
            return
        try:
            from overlay.runtime.live_site import run_as

            key = (name, run_as(module))
            again = self._seen.get(key) is module
            if key in self._seen and not (again and patience is not None):
                # Executed once more: from another source, perhaps.
                self._lived |= {name}
                self._forget()
                for entry in self._watched.get(name, ()):
                    entry.grow_old(name)
            spec = spec_of(sys.modules.get(name))
            # The path may have changed since it was decided, and now lead to another copy.
            if self._tree is not None and spec is not None and self._tree.file(name) != (spec.origin or ""):
                self._forget()
            if not self.has_begun:
                self.has_begun = True
                self._on_first_module()
            ended = [entry for entry in self._watched.get(name, ()) if entry.state in ENDED]
            for entry in self._watched.get(name, ()):
                self._apply(entry, name, module)
            self._seen[key] = module
            for entry in ended:
                if entry.state not in ENDED:
                    self._make_up_for(entry, name)
        finally:
            busy.release()
            if (tree := self._tree) is not None:
                tree.let_go()  # of what was compiled of the module, once for all patches that change it
            self._on_module()

    def _make_up_for(self, entry: Entry, name: str) -> None:
        """Apply a patch that was left out, until `name` was imported, to what had been imported before."""
        for (other, run), module in list(self._seen.items()):
            there = run or sys.modules.get(other) is module
            if other != name and other in entry.patch.modules() and module is not None and there:
                self._imported(other, module, 0.0)

    def _forget(self) -> None:
        """Read and decide anew from now on, where nothing has been put in place."""
        with self._lock:
            self._tree = None
            self._verdicts = {}

    def _apply(self, entry: Entry, name: str, module: object) -> None:
        verdict = self._verdict_on(entry, name)
        if self._pin is not None and entry.state not in ENDED:
            different = self._pin.difference(verdict, self.verdicts(), self._source())
            if different:
                self._fail(entry, PinError(different))
                return
        if entry.state in ENDED:
            loud = entry.state == "failed" or verdict.loud
            self._refuse(entry, verdict.verdict if entry.state == "skipped" else "failed", loud=loud)
            return
        if verdict.verdict != "apply":
            entry.end("skipped", verdict.reason)
            self._announce_skip(entry, verdict)
            self._refuse(entry, verdict.verdict, loud=verdict.loud)
            return
        for needed in entry.patch.requires:
            if self.entries[needed].state in ENDED:
                self._fail(entry, OverlayError(f"it needs {needed}, which is {self.entries[needed].state}"))
                return
        if not isinstance(module, ModuleType):
            what = f"in sys.modules is a {type(module).__qualname__}, no module"
            what = f"is {_BY_OTHERS}" if module is None else what
            self._fail(entry, OverlayError(f"{name} {what}"))
            return
        self._install(entry, name, module)

    def _install(self, entry: Entry, name: str, module: ModuleType) -> None:
        from overlay.runtime.live_site import ConflictError, run_as
        from overlay.runtime.sites import prepare, put

        with self._lock:
            mine = [item for _, item in entry.sites() if item.site.partition(":")[0] == name]
            missing = [item for item in mine if not entry.holds(module, item.site)]
            known = {site.site for site in entry.installed if not site.past}
        if not missing:
            return
        try:
            load_effect(module_of(entry.patch.id))
            tree = self._source()
            with paused():
                sites = prepare(entry.label, module, missing, tree)
            with self._lock:
                if self.closed:
                    return
                if entry.state in ENDED:  # another of its sites has failed in the meantime
                    self._refuse(entry, entry.state, loud=True)
                    return
                before = entry.installed
                entry.installed = [*before, *sites]  # first: an interruption must find what there is to undo
                try:
                    put(sites, first=name not in self._lived)
                except BaseException:
                    entry.installed = [*before, *(site for site in sites if site.in_place)]
                    raise
        except PatchError:
            raise
        except ConflictError as error:
            if known.issuperset(item.site for item in missing):
                entry.settle()  # somebody came after us: that is said, and the rest stays
                return
            self._fail(entry, error)
            return
        except Exception as error:  # noqa: BLE001 -- whatever a factory raises must not look like an ImportError
            if isinstance(error, OverlayError) and run_as(module):
                error = OverlayError(f"{error}; {name} runs as __main__: call overlay.enable() below it all")
            self._fail(entry, error)
            return
        self._record(entry)

    def _fail(self, entry: Entry, error: Exception) -> None:
        """Take out all of a patch after one of its sites could not be put in place, and say so."""
        self._refuse(entry, self._take_out(entry, error), loud=True)

    def _take_out(self, entry: Entry, error: Exception) -> str:
        """Take out a patch and what needs it before anything is raised, and return what it is now."""
        from overlay.runtime.live_site import ConflictError

        conflict = isinstance(error, ConflictError)
        with self._lock:
            reason = str(error) if isinstance(error, OverlayError) else f"{type(error).__name__}: {error}"
            entry.end("skipped" if conflict else "failed", reason)
            if conflict and entry.verdict is not None:
                entry.verdict = entry.verdict.replace(verdict="conflict", reason=reason)
        what = "conflict" if conflict else "failed"
        where = entry.verdict.where() if entry.verdict is not None else ""
        log.warning(f"NOT applied {entry.named} to {where}: {what}: {' '.join(reason.split())}{entry.loss}")
        self._take_out_what_needs(entry)
        return what

    def _take_out_what_needs(self, entry: Entry) -> None:
        for other in self.entries.values():
            if entry.patch.id in other.patch.requires and other.state not in ENDED and other.installed:
                self._take_out(other, OverlayError(f"it needs {entry.patch.id}, which is {entry.state}"))

    def _record(self, entry: Entry) -> None:
        """Say what became of the sites that were just put in place."""
        with self._lock:
            before = entry.reason
            entry.settle()
            incomplete, reason = entry.state == "incomplete", entry.reason
            if incomplete and (self._is_strict_on(entry) or self._pin is not None):
                entry.end("failed", reason)
        if incomplete and reason != before:
            where = entry.verdict.where() if entry.verdict is not None else ""
            log.warning(f"incomplete {entry.named} on {where}: {reason}; enable overlay earlier{entry.loss}")
            if entry.state in ENDED:
                self._take_out_what_needs(entry)
            self._refuse(entry, "incomplete", loud=True)
        elif not incomplete:
            entry.announce()

    def _announce_skip(self, entry: Entry, verdict: Verdict) -> None:
        where = verdict.where()
        if verdict.loud:
            clash = f" ({self._way_out(entry)})" if verdict.verdict == "conflict" else ""
            reason = f"{verdict.reason}{clash}{entry.loss}"
            log.warning(f"NOT applied {entry.named} to {where}: {verdict.verdict}: {reason}")
        elif verdict.verdict == "not-installed":
            log.debug(f"skipped {entry.label}: not-installed: {verdict.reason}")
        else:
            log.own(f"skipped {entry.label} on {where}: {verdict.verdict}: {verdict.reason}")

    def _is_strict_on(self, entry: Entry) -> bool:
        """Return whether it is an error that a patch cannot be applied: of an unnamed companion, never."""
        return self.strict and entry.patch.id not in self.chosen.companions

    def _way_out(self, entry: Entry) -> str:
        """Say what to set or to call so that a patch is left out, with those that would be the next error."""
        loud = {v.patch for v in self.verdicts() if v.verdict == "unknown-source"}
        gone = {entry.patch.id, *(loud - {*self.chosen.companions})}
        for other in self.entries.values():  # each after those that it requires
            if gone.intersection(other.patch.requires):
                gone.add(other.patch.id)
        more = ", ".join(sorted(gone - {entry.patch.id}))
        text = f"{self.chosen.without(gone, strict=self._strict_given)} leaves it out"
        return f"{text}, with {more}, which cannot be applied either" if more else text

    def _refuse(self, entry: Entry, what: str, *, loud: bool) -> None:
        if loud and self._pin is not None and not self._pin.accepts(entry.patch.id, what):
            held = "" if self._pin.name in entry.reason else f" (pinned to {self._pin.name})"
            msg = f"{entry.label} is {what}: {entry.reason}{held}"
            raise PinError(msg)
        if loud and self._is_strict_on(entry):
            way_out = f"strict mode; {self._way_out(entry)}"
            msg = f"{entry.label} is {what}: {entry.reason} ({way_out})"
            raise PatchError(msg)

    # -- deciding ------------------------------------------------------------------------------------

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on all selected patches, also on those whose modules have not been imported."""
        return [entry.verdict or self._decide(entry.patch) for entry in self.entries.values()]

    def decided(self) -> list[Verdict]:
        """Return what was decided from the sources, whoever else was met at the sites since."""
        found = self.entries.values()
        return [
            entry.verdict if entry.installed and entry.verdict else self._decide(entry.patch)
            for entry in found
        ]

    def _verdict_on(self, entry: Entry, name: str) -> Verdict:
        """Return the verdict on a patch, one of whose modules has been executed under `name`."""
        if entry.verdict is None or entry.state not in ENDED:
            entry.verdict = self._decide(entry.patch)
        if entry.verdict.verdict not in ("apply", "not-installed", "not-needed"):
            return entry.verdict
        owner = next(target.project.name for target in entry.patch.targets if name in target.modules())
        if _absent(entry.verdict, owner):
            # It was not there when that was decided, and it is now.
            self._forget()
            entry.verdict = self._decide(entry.patch)
            if _absent(entry.verdict, owner):
                reason = f"{name} has been imported, and {owner} cannot be found"
                entry.verdict = entry.verdict.replace(verdict="unknown-source", reason=reason)
            if entry.state == "skipped":
                entry.state, entry.reason = "armed", ""
        return entry.verdict

    def _decide(self, patch: Patch) -> Verdict:
        """Return the verdict on a patch. All are decided on at once: they can bear on each other."""
        found = self._verdicts
        if patch.id not in found:
            from overlay.source.decide import decide_all

            chosen = [entry.patch for entry in self.entries.values()]
            try:
                tree = self._source()
                with paused():
                    found = decide_all(chosen, tree, self._table)
                    tree.let_go()
            except Exception as error:  # noqa: BLE001 -- deciding must not break the import, nor look like its failure
                from overlay.verdict import Verdict

                reason = f"it cannot be decided on: {type(error).__name__}: {error}"
                found = {
                    one.id: Verdict(
                        patch=one.id, revision=one.revision, verdict="unknown-source", reason=reason
                    )
                    for one in chosen
                }
            self._verdicts = found
        return found[patch.id]

    def _source(self) -> InstalledTree:
        from overlay.source.source import InstalledTree

        tree = self._tree
        if tree is None:
            tree = self._tree = InstalledTree()
        return tree


def _perhaps_imported(modules: Iterable[str]) -> frozenset[str]:
    """Return those of some modules that may have been imported: Python has a finder for each folder asked.

    The folders of our own patches have names like theirs.
    """
    ours = tuple(getattr(sys.modules.get(PACK), "__path__", ()))
    folders = [folder for folder in sys.path_importer_cache if not folder.startswith(ours)]

    def asked(package: str) -> bool:
        inside = os.sep + package.replace(".", os.sep)
        return any(folder.endswith(inside) for folder in folders)

    asked_for = {name: asked(name) for name in {module.rpartition(".")[0] for module in modules} if name}
    return frozenset(name for name in modules if asked_for.get(name.rpartition(".")[0], True))


def _absent(verdict: Verdict, project: str) -> bool:
    return any(target.project == project and target.verdict == "not-installed" for target in verdict.targets)
