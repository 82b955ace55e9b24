"""The engine of one interpreter: it reads the settings, and opens and closes sessions."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
from contextlib import suppress

from overlay import log
from overlay._version import __version__
from overlay.errors import OverlayError, PatchError
from overlay.ledger import Status
from overlay.model import settings
from overlay.model.rank import is_first
from overlay.model.record import TYPE_CHECKING
from overlay.model.text import counted
from overlay.records import run
from overlay.runtime.finder import FirstFinder, runs_one_of, space_of_main
from overlay.runtime.job_log import JobLog, introduction
from overlay.runtime.unpickled import half_patched
from overlay.source import registry
from overlay.source.selection import Selection, choose

#: How often a fork looks whether a session is open: for 3 s or so. The other thread may wait for this one.
_FORK_WAITS = 150

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from overlay.ledger import Met, PatchStatus
    from overlay.patch import Patch
    from overlay.records.agreement import Account, Statement
    from overlay.records.lock import Lock
    from overlay.runtime.entry import Entry
    from overlay.runtime.session import Session
    from overlay.source.decide import Installed
    from overlay.source.source import Place, Tree
    from overlay.source.table import Table
    from overlay.verdict import Plan, Verdict

    #: What selects patches, and where upstreams are looked for, as for `overlay.plan`.
    Asked = str | Iterable[str] | None
    Where = Place | Sequence[Place] | Tree | None


def load_all() -> dict[str, Patch]:
    """Return the patches that come with overlay and those of the packs that `OVERLAY_PACKS` names, by id.

    Raises `SelectionError` if a pack is not installed, and `OverlayError` if it cannot be loaded, or if the
    patches that come with overlay are not there.
    """
    registry.awaited()
    patches = registry.load_patches()
    if not settings.packs():
        return patches
    packs = registry.wanted_packs()
    wanted = settings.pin()
    if wanted:
        from overlay.records.pin import check_packs

        check_packs(wanted, packs)
    for pack in packs:
        try:
            found = registry.load_patches(pack.package, prefix=f"{pack.name}/")
        except OverlayError:
            raise
        except Exception as error:
            msg = f"the pack {pack.name} ({pack.distribution} {pack.version}) cannot be loaded: {error!r}"
            raise OverlayError(msg) from error
        patches.update(found)
    return patches


def _tree(site: Where = None) -> Tree:
    from overlay.source.source import Tree

    return site if isinstance(site, Tree) else Tree(site)


class Engine:
    """Enables a set of patches in this interpreter. The package has one; tests make their own."""

    def __init__(
        self,
        load: Callable[[], dict[str, Patch]] = load_all,
        *,
        speaks: bool = False,
        table: Table | None = None,
    ) -> None:
        """Make an engine.

        `speaks`: whether it is the one of its process, and writes to the job's log. `table`: what patches
        were tested on. Default: the tables beside them.
        """
        self._load = load
        self._speaks = speaks
        self._table = table
        self._lock = _thread.RLock()
        self._patches: dict[str, Patch] | None = None
        #: The packs that were asked for as they were loaded.
        self._packs = ""
        self._opened: Session | None = None
        #: The finder that waits for the first import of an upstream, to open the session then.
        self._waiting: FirstFinder | None = None
        #: The same while it opens the session, and the thread that does so.
        self._woken: FirstFinder | None = None
        self._waker = 0
        #: What became of the patches of sessions that are closed.
        self._past: dict[str, Entry] = {}
        #: The variables that the session was opened with, beside selection and strict mode.
        self.settled: dict[str, str] = {}
        #: The known defects that the job of this process meets.
        self.met: tuple[Met, ...] = ()
        #: Says in the job's log what this process is run with, and what is in place.
        self.job_log = JobLog(self.configuration, self.account)

    def before_fork(self) -> None:
        """Wait until no other thread opens the session or patches: a fork has its locks, without it."""
        from time import sleep

        for _ in range(_FORK_WAITS):
            if self._lock.acquire(timeout=0.01):
                opens = self._woken is not None and self._waker != _thread.get_ident()
                if not opens and (self._opened is None or not self._opened.is_busy()):
                    return
                self._lock.release()
            sleep(0.01)

    def after_fork(self) -> None:
        """Go on in the parent."""
        with suppress(RuntimeError):  # it has waited in vain
            self._lock.release()

    def note_fork(self) -> None:
        """Renew the locks in a fork: the thread that held one is gone."""
        self._lock = _thread.RLock()
        self.job_log.note_fork()
        if self._woken is not None and self._opened is None:
            self._waiting = self._woken  # what a thread that is not here has begun, the next import does
            self._waiting.packages = registry.awaited()[0]
        self._woken = None
        if self._opened is not None:
            self._opened.renew_locks()

    def arm(self, patches: Asked = None, strict: bool | None = None, *, at_start: bool = False) -> None:
        """Check settings and ids now, and enable at the first import of an upstream.

        It enables at once if packs, a pin or the user's own table decide, if a glob needs to know which
        patches are opt-in, or if an upstream is imported already. `at_start`: the interpreter starts, and
        what it runs has imported nothing yet.
        """
        packages, ids = registry.awaited()
        settings.check()
        terms = settings.asked(patches)
        patches = None if patches is None else terms
        globs = not at_start and any(char in term for term in terms for char in "*?[")
        there = not packages.isdisjoint(sys.modules) or (
            not at_start and runs_one_of(packages, space_of_main())
        )
        early = settings.packs() or settings.pin() or settings.trust()
        if early or globs or there or self.enabled:
            self.enable(patches, strict)
            return
        settings.select(ids, patches)
        firm = settings.strict(strict)

        def wanted() -> tuple[Asked, bool | None]:
            """Return what is asked for. A program that empties its environment asks for nothing else."""
            return (
                patches if patches is not None or os.environ.get("OVERLAY_PATCHES") else terms or None,
                strict if strict is not None or os.environ.get("OVERLAY_STRICT") else firm,
            )

        self._begin()
        self._wait(packages, wanted, at_start)

    def _wait(
        self, packages: frozenset[str], wanted: Callable[[], tuple[Asked, bool | None]], at_start: bool
    ) -> None:
        def refuse(finder: FirstFinder, error: BaseException) -> None:
            self._woken = None
            self.disable()
            finder.remove()
            said = isinstance(error, OverlayError) or not isinstance(error, Exception)
            text = str(error) if said else f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception) or settings.strict(wanted()[1]):  # or it was interrupted
                atexit.register(self._at_exit)
                self._wait(packages, wanted, at_start)
                raise error if said else OverlayError(text) from error
            log.warning(f"NOT enabled: {text}")

        def wake() -> None:
            """Open the session. In strict mode an error fails the import, each time that it is tried."""
            with self._lock:
                finder, self._waiting = self._waiting, None
                if finder is None:
                    return
                self._woken, self._waker = finder, _thread.get_ident()
                try:
                    begun = self._begin_session(*wanted(), finder)
                except BaseException as error:  # noqa: BLE001 -- an ImportError would be taken for the upstream's
                    refuse(finder, error)
                    return
            try:
                self._catch_up(*begun, late=True)
                finder.wake = lambda: self._say_if_in_vain(finder)
                finder.wait_for(packages)
            except BaseException as error:  # noqa: BLE001 -- likewise
                refuse(finder, error)
            finally:
                self._woken = None

        self._waiting = FirstFinder(packages, wake, at_start=at_start)
        self._waiting.install()

    def _say_if_in_vain(self, finder: FirstFinder) -> None:
        """Warn of a selection without a patch for what is installed. No verdict warns of that."""
        from overlay.source.decide import installed

        finder.packages = frozenset()  # none is waited for any more
        chosen = self.chosen()
        if not self._speaks or chosen.terms in ((), ("all",), ("none",)) or not self.job_log.speaks:
            return
        asked = [self.known()[name] for name in chosen.ids if name not in chosen.companions]
        projects = {target.project.name: target.project for patch in asked for target in patch.targets}
        if not any(one.version for one in installed(projects.values(), _tree())):
            why = f" for what is found here so far (not {', '.join(projects)})" if projects else ""
            log.warning(f"the selection {','.join(chosen.terms)} has no patch{why}")

    def enable(self, patches: Asked = None, strict: bool | None = None) -> Status:
        """Enable the selected patches now, and apply those whose modules are there already."""
        if self._waiting is not None:
            self._waiting.wake()
        self._catch_up(*self._begin_session(patches, strict), late=False)
        return self.status()

    def _begin_session(
        self, patches: Asked, strict: bool | None, waited: FirstFinder | None = None
    ) -> tuple[Session, bool]:
        """Return the session, and whether it is a new one. `waited`: the finder that an import woke."""
        with self._lock:
            from overlay.runtime.session import Session  # under the lock: a fork waits for it

            known = self.known()
            if self._opened is not None and self._opened.closed:
                self.disable()  # which was interrupted
            session, opened = self._opened, self._opened is None
            if session is None:
                selection = choose(known, patches, strict)
                settings.check()  # a wrong option is an error now, not in the middle of a job
                wanted = settings.pin()  # as it was given
                if waited is None:
                    self._begin()
                chosen = [known[name] for name in selection.ids]
                names = ("OVERLAY_PACKS", "OVERLAY_PIN", "OVERLAY_TRUST")
                self.settled = {name: os.environ[name] for name in names if os.environ.get(name)}
                pin = None
                if wanted:
                    from overlay.records.pin import Pin

                    pin = Pin(wanted, chosen, selection)
                calls = {"on_first_module": self.job_log.first_module, "on_module": self._after_module}
                finder = waited or FirstFinder(frozenset(), lambda: self._say_if_in_vain(finder))
                session = self._opened = Session(
                    chosen,
                    selection,
                    finder,
                    strict=settings.strict(strict),
                    pin=pin,
                    table=self.tested(),
                    **(calls if self._speaks else {}),
                )
                if self._speaks and waited is None:
                    of = [target.project for patch in known.values() for target in patch.targets]
                    finder.wait_for(frozenset(name for project in of for name in project.packages()))
            elif (patches is not None and choose(known, patches).ids != session.chosen.ids) or (
                strict is not None and settings.strict(strict) != session.strict
            ):
                terms = ",".join(session.chosen.terms) or "all"
                raise OverlayError(
                    f"overlay is already enabled, with patches={terms!r} and strict={session.strict}: "
                    "call overlay.disable() first to change that"
                )
        return session, opened

    def _after_module(self) -> None:
        run.begin()
        self.job_log.watch()

    def _catch_up(self, session: Session, opened: bool, *, late: bool) -> None:
        """Apply what modules wait for that are there. Close a session that was opened for this if that fails.

        The lock is not held: a factory may import what a thread that waits for the lock is importing. `late`:
        an import waits for this, and nothing may delay that.
        """
        from overlay.runtime.session import PATIENCE

        try:
            if late:
                session.catch_up_late()
            else:
                session.catch_up(PATIENCE)
        except BaseException:
            if opened:
                self.disable()
            raise

    def _begin(self) -> None:
        atexit.register(self._at_exit)
        log.set_level(settings.log_level())
        for sentence in settings.unknown():
            log.warning(sentence)
        # Processes that this one starts may start in another folder.
        os.environ.update(settings.absolute_paths())

    def _at_exit(self) -> None:
        """Warn of modules that were imported past the hook, or are gone, and never patched."""
        session = self._opened
        if session is not None and not session.has_begun and session.chosen.terms not in ((), ("all",)):
            session.name_gone()
        asked = self._waiting or self._opened
        if asked is not None and (missed := asked.missed()):
            log.warning(
                f"NOT patched: {', '.join(missed)} was imported past overlay, by a finder that stands before "
                "it on sys.meta_path, or in its place: call overlay.enable() once that finder is there"
            )

    def disable(self) -> None:
        """Take everything out again, and disarm. If that is interrupted, the next call goes on with it."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.remove()
                self._waiting = None
            self.met = ()  # what it says is fixed is no longer
            session = self._opened
            if session is not None:
                self.job_log.clear()
                session.close()
                # One that never was in place says less than what is known of it from a session before.
                past, new = self._past, session.entries.items()
                self._past = {**past, **{n: one for n, one in new if n not in past or one.state != "waiting"}}
                self._opened, self.settled = None, {}
                out = sum(entry.state == "reverted" for entry in session.entries.values())
                if ranks := self.job_log.compared_with:
                    what = "a rank that does not disable stays patched"
                    log.warning(f"disabled here, after {ranks} agreed: {what}")
                elif out and self._speaks:  # another rank than the first may be the only one
                    say = log.info if is_first() else log.warning
                    say(f"disabled: {counted(out, 'patch')} taken out")
            atexit.unregister(self._at_exit)

    def plan(self, patches: Asked = None, site: Where = None) -> Plan:
        """Decide on every patch without importing anything of an upstream."""
        from overlay.source.decide import make_plan

        chosen, tree = self.chosen(patches), _tree(site)
        known = self.known()
        plan = make_plan(known.values(), chosen.ids, tree, self.tested(), tree.name)
        return plan.replace(companions=chosen.companions)

    def plan_each(self, site: Where = None) -> Plan:
        """Decide on all patches, without importing anything of an upstream.

        Those of the default selection are decided on together. An opt-in patch is decided on with what it
        requires alone: it may stand in for another, with which it would conflict.
        """
        tree = _tree(site)
        together = self.plan("all", tree)
        found = {verdict.patch: verdict for verdict in together.verdicts}
        for name, patch in self.known().items():
            if patch.opt_in:
                alone = self.plan([name, *patch.requires], tree).verdicts
                found[name] = next(verdict for verdict in alone if verdict.patch == name)
        return together.replace(verdicts=tuple(found.values()))

    @property
    def _session(self) -> Session | None:
        """The session. If it still waits for an import, asking for it opens it now."""
        if self._waiting is not None:
            self._waiting.wake()
        return self._opened

    def chosen(self, patches: Asked = None) -> Selection:
        """Return what `patches` selects, without it what is enabled, or else what the environment selects."""
        session = self._session
        if patches is None and session is not None:
            return session.chosen
        return choose(self.known(), patches)

    def installed(self, tree: Tree | None = None) -> tuple[Installed, ...]:
        """Return what is installed of the projects that patches are for, and of those beneath them."""
        from overlay.source.decide import installed

        targets = [target.project for patch in self.known().values() for target in patch.targets]
        by_name = {project.name: project for project in (*targets, *registry.environment().SHOWN)}
        return installed(by_name.values(), _tree(tree))

    def lock(self, patches: Asked = None) -> Lock:
        """Return the lock of the selected patches as they are decided on here."""
        plan = self.plan(patches)
        return self._lock_of(plan.selection, plan.verdicts)

    def decided(self) -> list[Verdict]:
        """Return the verdicts on what is enabled here."""
        return self._session.verdicts() if self._session is not None else []

    def claims(self) -> dict[str, str]:
        """Return which patch replaces each site, by what is decided here."""
        from overlay.source.decide import variant_of

        applying = [(one, self.known()[one.patch]) for one in self.decided() if one.verdict == "apply"]
        variants = [(of, variant_of(of, target)) for one, of in applying for target in one.targets]
        return {item.site: of.id for of, variant in variants if variant for item in variant.replacements}

    def statement(self) -> Statement:
        """Return what this process says of itself to other ranks."""
        from overlay.records import agreement

        status, session = self.status(), self._session
        if session is None:
            return agreement.Statement()
        return agreement.statement_of(self._session_lock(session), session.verdicts(), status)

    def account(self) -> Account | None:
        """Return what is in place in this process, `None` if it is not enabled."""
        from overlay.records.agreement import account_of

        session = self._session
        if session is None:
            return None
        return account_of(self._status(session.status()), self._session_lock(session))

    def configuration(self) -> str:
        """Return what this process is run with, in a line. Raises `OverlayError` if it is not enabled."""
        session = self._session
        if session is None:
            raise OverlayError("overlay is not enabled")
        # Until it has begun, the path may still change: the session must not keep verdicts from now.
        lock = self._session_lock(session) if session.has_begun else self.lock()
        count = len(session.chosen.ids)
        return introduction(lock, count, strict=session.strict, pinned=bool(session.pinned))

    def _session_lock(self, session: Session) -> Lock:
        return self._lock_of(session.chosen.ids, session.verdicts())

    def _lock_of(self, selection: Iterable[str], verdicts: Sequence[Verdict]) -> Lock:
        """Return the lock of selected patches, by the verdicts on them."""
        from overlay.records.lock import make_lock, static_part

        patches = [self.known()[name] for name in selection]
        packs = registry.wanted_packs({**os.environ, **self.settled})
        return make_lock(static_part(patches, packs), verdicts, _tree())

    @property
    def enabled(self) -> bool:
        """Whether patches are in place, armed or waited for."""
        return self._opened is not None or self._waiting is not None

    @property
    def strict(self) -> bool:
        """Whether there is a session, in strict mode."""
        return self._session is not None and self._session.strict

    def asked(self) -> dict[str, str]:
        """Return selection and strict mode as variables for another process; none if it is not enabled."""
        session = self._session
        if session is None:
            return {}
        # Defaults are given too: the environment of the other process may say otherwise.
        terms = ",".join(session.chosen.terms) or "all"
        return {"OVERLAY_PATCHES": terms, "OVERLAY_STRICT": "1" if session.strict else "0"}

    def status(self, *, looks: bool = True) -> Status:
        """Return the ledger. Modules that slipped past the import hook are caught up with first.

        `looks`: whether it may take the time to look again who holds what.
        """
        session = self._session
        if session is not None:
            try:
                session.catch_up_late()
            except PatchError:
                log.debug("what was refused stays refused: the ledger says so")
            if looks:
                session.look_again()
        return self._status(self._came_to())

    def last_words(self) -> Status:
        """Return the ledger as it stands. It catches up with no module."""
        return self._status(self._came_to())

    def _came_to(self) -> tuple[PatchStatus, ...]:
        """Return what became of the patches of this session, and of those that were taken out before it."""
        session = self._opened
        if session is None:
            return tuple(entry.status() for entry in self._past.values())
        before = [one for name, one in self._past.items() if name not in session.entries]
        out = (one.status() for one in before if one.state == "reverted")
        return (*session.status(), *out)

    def _status(self, patches: tuple[PatchStatus, ...]) -> Status:
        session = self._opened
        return Status(
            enabled=session is not None,
            strict=session is not None and session.strict,
            version=__version__,
            python=".".join(map(str, sys.version_info[:3])),
            pid=os.getpid(),
            selection=session.chosen.ids if session is not None else (),
            companions=session.chosen.companions if session is not None else (),
            patches=patches,
            pinned=session.pinned if session is not None else "",
            half_patched=half_patched(patches if session is not None else ()),
            met=tuple(one.now(patches) for one in self.met),
        )

    def tested(self) -> Table:
        """Return what patches were tested on. Raises `TrustError` for a file that is no table."""
        return registry.tables() if self._table is None else self._table

    def known(self) -> dict[str, Patch]:
        """Return all patches by id: those of overlay, and those of the packs that are asked for."""
        packs = os.environ.get("OVERLAY_PACKS", "")
        if self._patches is None or (self._opened is None and packs != self._packs):
            self._patches, self._packs = self._load(), packs
        return self._patches
