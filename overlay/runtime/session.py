"""A session: what lies between `enable()` and `disable()` in one interpreter.

One lock guards the ledger and every change to an upstream object. It is never held while something is
imported: a factory may import what another thread is importing, and the two would wait for each other. Each
module has a lock of its own, so that only one thread at a time works on it, as in the import system.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import sleep
from types import ModuleType

from overlay import log
from overlay.effect import load as load_effect
from overlay.effect import told
from overlay.errors import OverlayError, PatchError, PinError
from overlay.ledger import PatchStatus
from overlay.model.record import TYPE_CHECKING
from overlay.patch import Patch
from overlay.runtime.entry import ENDED, Entry
from overlay.runtime.finder import FirstFinder
from overlay.runtime.loader import spec_of
from overlay.runtime.sites import ConflictError, InstalledSite, prepare, put, run_as
from overlay.source.decide import decide_all
from overlay.source.registry import PACK, module_of
from overlay.source.selection import SET_BY_RUN, Selection, in_order
from overlay.source.source import Tree
from overlay.source.table import Table
from overlay.verdict import Verdict

if TYPE_CHECKING:
    from overlay.records.pin import Pin

#: Seconds for which `enable()` waits for another thread that is busy with a module. Not for ever: that thread
#: may be waiting for an import of ours.
PATIENCE = 10.0
#: Seconds for which somebody may look at all objects, and hold originals.
_MOMENT = 0.05
#: Verdicts that leave a patch out without anybody missing it.
_QUIET = ("not-installed", "not-needed")
#: Why a module that runs as `__main__` is not patched: its runner compiles it, or keeps it off `sys.modules`.
_BY_OTHERS = (
    "run as __main__ by something that overlay cannot follow (like `python -m` by another name, a profiler, "
    "a debugger or runpy.run_module without alter_sys=True): start it without that, or from a script "
    "that imports it"
)


class Session:
    """The selected patches, armed, and what became of them."""

    def __init__(  # noqa: PLR0913 -- what a process was asked for, and what it knows
        self,
        patches: Sequence[Patch],
        chosen: Selection,
        finder: FirstFinder,
        *,
        table: Table,
        strict: bool,
        pin: Pin | None = None,
        on_first_module: Callable[[], None] = lambda: None,
        on_module: Callable[[], None] = lambda: None,
    ) -> None:
        """Arm the patches of a selection.

        `finder` reports their modules. `table`: what they were tested on. `on_first_module` is called before
        the first module that a patch is for is handled, `on_module` after each.
        """
        by_id = {patch.id: patch for patch in patches}
        self.chosen = chosen
        self.strict = strict
        self._pin = pin
        self._table = table
        self._on_first_module = on_first_module
        #: Whether a module that a patch is for has been handled: from then on, the verdicts count.
        self.has_begun = False
        self._on_module = on_module
        self.entries = {name: Entry(by_id[name]) for name in in_order(by_id)}
        #: Whether it is being taken out, or has been.
        self.closed = False
        #: Whether a thread enables: what it has not come to yet was there before the hook.
        self._catches_up = False
        self._tree: Tree | None = None
        self._verdicts: dict[str, Verdict] = {}
        #: The modules that were handled, by name, and by `run_as` where they run instead of being imported.
        self._seen: dict[tuple[str, str], object] = {}
        self._watched: dict[str, list[Entry]] = {}
        self.renew_locks()
        for entry in self.entries.values():
            for module in entry.patch.modules():
                self._watched.setdefault(module, []).append(entry)
        #: Modules that may have been executed before: anybody may hold functions of an earlier execution.
        self._executed_before = _perhaps_imported(self._watched)
        self._finder = finder
        finder.watch(frozenset(self._watched), self._imported, self.catch_up_late)

    def renew_locks(self) -> None:
        """Make the locks: at the start, and in a fork, where the thread that held one is gone."""
        self._lock = _thread.RLock()
        self._busy: dict[str, _thread.RLock] = {}
        #: What each thread works on.
        self._works: set[tuple[str, int]] = set()

    def is_busy(self) -> bool:
        """Return whether another thread is busy with a module."""
        for lock in [*self._busy.values()]:
            if not lock.acquire(blocking=False):
                return True
            lock.release()
        return False

    @property
    def pinned(self) -> str:
        """What this process is held to, empty if it is not."""
        return "" if self._pin is None else self._pin.name

    def close(self) -> None:
        """Take everything out again. After an interruption it can be called once more."""
        with self._lock:
            for entry in self.entries.values() if not self.closed else ():
                entry.settle()
            self.closed = True
        self._finder.remove()  # without the lock: the import that this waits for may need it
        with self._lock:
            for entry in reversed(self.entries.values()):
                works = entry.status().in_force
                entry.revert()
                if entry.state == "incomplete" and not works:  # a report tells it from one that was in place
                    entry.state, entry.reason = "reverted", f"was incomplete: {entry.reason}"
                elif entry.state not in ENDED:
                    entry.state = "reverted" if entry.was_in_place else entry.state
                    entry.reason = "" if entry.was_in_place else "was never in place"

    def status(self) -> tuple[PatchStatus, ...]:
        """Return the ledger, with each site as it is now."""
        with self._lock:
            for entry in self.entries.values():
                entry.settle()
            return tuple(entry.status() for entry in self.entries.values())

    def look_again(self) -> None:
        """Look whether the originals that somebody held are still held. That takes a look at all objects."""
        with self._lock:
            for entry in self.entries.values():
                entry.look_again()

    def missed(self) -> list[str]:
        """Return the watched modules that were imported past the hook and have not been handled."""
        seen = {id(module) for module in self._seen.values()}
        there = [(name, sys.modules.get(name)) for name in self._watched if not self._finder.has_met(name)]
        return sorted(name for name, module in there if module is not None and id(module) not in seen)

    def catch_up_late(self) -> None:
        """Catch up, and name what came past the hook and is patched only now."""
        late = [] if self._catches_up else self.missed()
        try:
            self._catch_up(0.0)
        finally:
            late = [n for n in late if any(entry.state == "applied" for entry in self._watched[n])]
            if late and not self.closed:
                log.warning(
                    f"{', '.join(late)} was imported past overlay, by a finder that stands before it on "
                    "sys.meta_path: it is patched only now"
                )

    def catch_up(self, patience: float) -> None:
        """Handle watched modules that were imported before the hook was there, or past it.

        Raises `PatchError` in strict mode, once all of them have been looked at.
        """
        self._catches_up = True
        try:
            self._catch_up(patience)
        finally:
            self._catches_up = False

    def _catch_up(self, patience: float) -> None:
        self._finder.install()  # somebody may have taken it out of the path, or stand before it
        refused: PatchError | None = None
        main = sys.modules.get("__main__")
        run = self._finder.running(getattr(main, "__dict__", {}))[0] if patience else ""
        there = [(name, sys.modules.get(name)) for name in self._watched]
        there = [(name, module) for name, module in there if self._finder.has_executed(name, module)]
        for name, module in [*there, *([(run, main)] if run else [])]:
            if self.closed or module is None:
                continue
            try:
                self._imported(name, module, patience)
            except PatchError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    # -- applying ------------------------------------------------------------------------------------

    def _imported(self, name: str, module: object, patience: float | None = None) -> None:
        """Apply what waits for a module that has been executed.

        Never raises an `ImportError`, and in strict mode raises again if the import is tried again. A caller
        that is no import gives its `patience`: after so long it gives up a module that another thread is busy
        with. It does not take a module that it has handled for one that was executed again.
        """
        if self.closed:
            return
        with self._lock:
            busy = self._busy.setdefault(name, _thread.RLock())
        work = (name, _thread.get_ident())
        # Something that this thread imports for the module may bring it here again.
        nested = work in self._works
        if nested and patience is not None:
            return
        if not busy.acquire(timeout=-1 if patience is None else patience):
            return
        try:
            self._works.add(work)
            self._handle(name, module, patience)
        finally:
            if not nested:
                self._works.discard(work)
            busy.release()
            if (tree := self._tree) is not None:
                tree.let_go()  # the module was compiled once for all its patches
            self._on_module()

    def _handle(self, name: str, module: object, patience: float | None) -> None:
        key, mine = (name, run_as(module)), self._watched.get(name, [])
        again = self._seen.get(key) is module
        if key in self._seen and not (again and patience is not None):
            # It was executed once more, perhaps from another source.
            self._executed_before |= {name}
            self._forget()
            for entry in mine:
                entry.mark_past(name)
        spec = spec_of(sys.modules.get(name))
        # The path may have changed since it was decided, and now lead to another copy.
        if self._tree is not None and spec is not None and self._tree.file(name) != (spec.origin or ""):
            self._forget()
        if not self.has_begun:
            self.has_begun = True
            self._on_first_module()
        ended = [entry for entry in mine if entry.state in ENDED]
        for entry in mine:
            self._apply(entry, name, module)
        self._seen[key] = module
        if not again:
            self._refuse_gone(name.partition(".")[0])
        if any(entry.state not in ENDED for entry in ended):
            # Modules that were imported while that patch was left out still have to get it.
            for (other, run), past in list(self._seen.items()):
                if past is not None and (run or sys.modules.get(other) is past):
                    self._imported(other, past, 0.0)

    def _apply(self, entry: Entry, name: str, module: object) -> None:
        verdict = self._verdict_on(entry, name)
        if self._pin is not None and entry.state not in ENDED:
            different = self._pin.difference(verdict, self.verdicts(), self._source())
            if different:
                self._leave_out(entry, "failed", different)
        if entry.state in ENDED:
            self._refuse(entry)
            return
        if verdict.verdict != "apply":
            self._leave_out(entry, verdict.verdict, verdict.reason)
            return
        for needed in entry.patch.requires:
            if self.entries[needed].state in ENDED:
                self._leave_out(entry, "failed", f"it needs {needed}, which is {self.entries[needed].state}")
                return
        if module is None:
            self._leave_out(entry, "failed", f"{name} is {_BY_OTHERS}")
        elif not isinstance(module, ModuleType):
            what = f"{name} in sys.modules is a {type(module).__qualname__}, no module"
            self._leave_out(entry, "failed", what)
        else:
            self._install(entry, name, module)

    def name_gone(self) -> None:
        """Name patches whose modules are gone where nothing else of their packages was handled."""
        packages = {name.partition(".")[0] for name in self._watched}
        for package in sorted(packages.intersection(sys.modules)):
            with suppress(OverlayError):  # it is logged
                self._refuse_gone(package)

    def _refuse_gone(self, package: str) -> None:
        """Leave out patches whose modules are gone from a package that is used: no import would say so."""
        for entry in self.entries.values():
            verdict = self._decide(entry.patch)
            if verdict.verdict != "unknown-source" or not self._is_gone(verdict, entry.patch, package):
                continue
            if entry.state == "waiting":
                entry.verdict = verdict
                self._leave_out(entry, verdict.verdict, verdict.reason)
            elif entry.state in ENDED:
                self._refuse(entry)  # in strict mode, each import of the package fails

    def _is_gone(self, verdict: Verdict, patch: Patch, package: str) -> bool:
        """Return whether all that a patch replaces in a package on which it was not tested is gone."""
        unknown = [one.project for one in verdict.targets if one.verdict == "unknown-source"]
        targets = [one for one in patch.targets if one.project.name in unknown]
        targets = [one for one in targets if one.project.marker.partition(".")[0] == package]
        modules = {site.partition(":")[0] for one in targets for site in one.replaced()}
        return bool(modules) and not any(map(self._source().file, modules))

    def _install(self, entry: Entry, name: str, module: ModuleType) -> None:
        with self._lock:
            mine = [item for _, item in entry.sites() if item.site.partition(":")[0] == name]
            missing = [item for item in mine if not entry.holds(module, item.site)]
            known = {one.site for one in entry.installed if one.module is module and not one.past}
        if not missing:
            return
        try:
            load_effect(module_of(entry.patch.id))
            tree = self._source()
            if reason := entry.obstacle(tree) or (entry.differs(name, module) if run_as(module) else ""):
                raise ConflictError(reason)  # noqa: TRY301
            sites = [prepare(entry.patch.id, module, item, tree) for item in missing]
            self._put(entry, sites, first=name not in self._executed_before)
            if again := known.intersection(item.site for item in missing):
                names = ", ".join(sorted(again))
                log.warning(
                    f"{entry.patch.id}: the original of {names} had been restored: it is patched again"
                )
        except PatchError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a factory raises must not look like an ImportError
            reason = str(error) if isinstance(error, OverlayError) else f"{type(error).__name__}: {error}"
            if isinstance(error, OverlayError) and known.issuperset(item.site for item in missing):
                entry.settle()  # somebody replaced ours: that is logged, and the rest stays
            elif isinstance(error, ConflictError):
                self._leave_out(entry, "conflict", reason)
            else:
                if isinstance(error, OverlayError) and run_as(module):
                    reason += f"; {name} runs as __main__: call overlay.enable() below it all"
                self._leave_out(entry, "failed", reason)

    def _put(self, entry: Entry, sites: list[InstalledSite], *, first: bool) -> None:
        with self._lock:
            if self.closed:
                return
            if entry.state in ENDED:  # another of its sites has failed in the meantime
                self._refuse(entry)
                return
            before = entry.installed
            entry.installed = [*before, *sites]  # first: an interruption must find what there is to undo
            try:
                put(sites, first=first)
            except BaseException:
                entry.installed = [*before, *(site for site in sites if site.in_place)]
                raise
        self._settle(entry, first=first)

    def _settle(self, entry: Entry, *, first: bool) -> None:
        """Say what became of sites just put in place. A pin or strict mode leaves out what is incomplete.

        `first`: their module was executed just now, and never before.
        """
        before = entry.reason
        with self._lock:
            entry.settle()
            if first and entry.state == "incomplete":
                sleep(_MOMENT)
                entry.look_again()
        if entry.state != "incomplete":
            entry.announce()
        elif entry.status().in_force:
            pass  # a wrapper: `settle` has named it
        elif self._is_strict_on(entry) or self._pin is not None:
            self._leave_out(entry, "incomplete", entry.reason)
        elif entry.reason != before:
            self._say(entry, "incomplete", entry.reason)

    def _leave_out(self, entry: Entry, what: str, reason: str) -> None:
        """Take out a patch and those that need it, and say so. In strict mode, raise after that."""
        if self.closed:  # what it has met may belong to the next session
            return
        self._end(entry, what, reason)
        self._refuse(entry)

    def _end(self, entry: Entry, what: str, reason: str) -> None:
        with self._lock:
            entry.end(what, reason)
        self._say(entry, what, reason)
        for other in self.entries.values():
            if entry.patch.id in other.patch.requires and other.state not in ENDED and other.installed:
                self._end(other, "failed", f"it needs {entry.patch.id}, which is {entry.state}")

    def _say(self, entry: Entry, what: str, reason: str) -> None:
        patch, reason = entry.patch, " ".join(reason.split())
        where = entry.verdict.where() if entry.verdict is not None else ""
        if what == "not-installed":
            log.debug(f"skipped {patch.id}: {what}: {reason}")
        elif what in _QUIET:
            log.own(f"skipped {patch.id} on {where}: {what}: {reason}")
        else:
            text = f"NOT applied {patch.id} to {where}: {what}: {reason}"
            if what == "conflict":
                text += f" ({self._way_out(entry)})"
            if what == "incomplete":
                text = f"incomplete {patch.id} on {where}: {reason}; enable overlay earlier"
            ended = entry.state in ENDED and entry.was_in_place
            if ended and (effect := entry.effect()) is not None:
                text += f"; until then it {told(effect)}"
            log.warning(f"{text}; without it, {patch.without}" if patch.companion and patch.without else text)

    def _refuse(self, entry: Entry) -> None:
        """Raise for a patch that is missed, if a pin or strict mode asks for that."""
        what = entry.outcome
        if what in _QUIET:
            return
        said = f"{entry.patch.id} {'' if what == 'failed' else 'is '}{what}: {entry.reason}"
        if self._pin is not None and not self._pin.accepts(entry.patch.id, what):
            held = "" if self._pin.name in entry.reason else f" (pinned to {self._pin.name})"
            raise PinError(said + held)
        if self._is_strict_on(entry):
            raise PatchError(f"{said} (strict mode; {self._way_out(entry)})")

    def _is_strict_on(self, entry: Entry) -> bool:
        """Return whether it is an error that a patch cannot be applied.

        It never is for an unnamed companion, nor where what the patch serves is installed and not imported.
        """
        served = {target.serves for target in entry.patch.targets}
        markers = [one.project.marker for one in entry.patch.targets if one.project.name in served]
        is_here = all(marker.partition(".")[0] in sys.modules for marker in markers)
        return self.strict and is_here and entry.patch.id not in self.chosen.companions

    def _way_out(self, entry: Entry) -> str:
        """Return what to set or to call to leave a patch out, with those that would be the next error."""
        loud = {v.patch for v in self.verdicts() if v.verdict == "unknown-source"}
        gone = {entry.patch.id, *(loud - {*self.chosen.companions})}
        for other in self.entries.values():  # each after those that it requires
            if gone.intersection(other.patch.requires):
                gone.add(other.patch.id)
        more = ", ".join(sorted(gone - {entry.patch.id}))
        text = f"{self.chosen.without(gone)} leaves it out"
        text += f", with {more}, which cannot be applied either" if more else ""
        return text if self.chosen.given else text + SET_BY_RUN

    # -- deciding ------------------------------------------------------------------------------------

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on all selected patches by the sources alone, whatever stood at the sites."""
        return [
            entry.verdict if entry.installed and entry.verdict else self._decide(entry.patch)
            for entry in self.entries.values()
        ]

    def _verdict_on(self, entry: Entry, name: str) -> Verdict:
        """Return the verdict on a patch, one of whose modules has been executed under `name`."""
        if entry.verdict is None or entry.state not in ENDED:
            entry.verdict = self._decide(entry.patch)
        if entry.verdict.verdict not in ("apply", *_QUIET):
            return entry.verdict
        owner = next(target.project.name for target in entry.patch.targets if name in target.modules())
        if _absent(entry.verdict, owner):
            # The project was not there when that was decided, and now it is.
            self._forget()
            entry.verdict = self._decide(entry.patch)
            if _absent(entry.verdict, owner):
                reason = f"{name} has been imported, and {owner} cannot be found"
                entry.verdict = entry.verdict.replace(verdict="unknown-source", reason=reason)
            if entry.state == "skipped":
                entry.state, entry.reason = "waiting", ""
        return entry.verdict

    def _forget(self) -> None:
        """Forget what was read and decided, except the verdicts on patches that are in place."""
        with self._lock:
            self._tree = None
            self._verdicts = {}

    def _decide(self, patch: Patch) -> Verdict:
        """Return the verdict on a patch. All are decided on at once: one can change another."""
        found = self._verdicts
        if patch.id not in found:
            chosen = [entry.patch for entry in self.entries.values()]
            try:
                tree = self._source()
                found = decide_all(chosen, tree, self._table)
                tree.let_go()
            except Exception as error:  # noqa: BLE001 -- deciding must not break the import, nor look like its failure
                reason = f"it cannot be decided on: {type(error).__name__}: {error}"
                blank = Verdict(patch="", verdict="unknown-source", reason=reason)
                found = {one.id: blank.replace(patch=one.id) for one in chosen}
            self._verdicts = found
        return found[patch.id]

    def _source(self) -> Tree:
        if (tree := self._tree) is None:  # another thread may forget it at any moment
            tree = self._tree = Tree()
        return tree


def _perhaps_imported(modules: Iterable[str]) -> frozenset[str]:
    """Return the modules that may have been imported: Python keeps a finder for each folder that it searched.

    The folders of our own patches do not count: they have the same names.
    """
    ours = tuple(getattr(sys.modules.get(PACK), "__path__", ()))
    folders = [folder for folder in sys.path_importer_cache if not folder.startswith(ours)]

    def asked(package: str) -> bool:
        inside = os.sep + package.replace(".", os.sep)
        return not package or any(folder.endswith(inside) for folder in folders)

    packages = {module.rpartition(".")[0] for module in modules}
    asked_for = {package for package in packages if asked(package)}
    return frozenset(name for name in modules if name.rpartition(".")[0] in asked_for)


def _absent(verdict: Verdict, project: str) -> bool:
    return any(target.project == project and target.verdict == "not-installed" for target in verdict.targets)
