"""What became of one selected patch in this process."""

from __future__ import annotations

import sys
from types import FunctionType

from overlay import log
from overlay.effect import Effect, effect_of
from overlay.ledger import PatchStatus, SiteStatus
from overlay.model.text import counted
from overlay.patch import Patch, Replacement
from overlay.runtime.sites import InstalledSite, current, describe, holds, run_as, take_out, upstreams
from overlay.source.decide import variant_of
from overlay.source.registry import module_of
from overlay.verdict import TargetVerdict, Verdict

#: States of a patch that is left out: it may come back only if its project turns up later in the session.
ENDED = ("failed", "skipped")


class Entry:
    """One selected patch in this process."""

    def __init__(self, patch: Patch) -> None:
        self.patch = patch
        self.verdict: Verdict | None = None
        self.state = "waiting"
        self.reason = ""
        #: In one of the states `ENDED`, what it came to: a verdict, `failed` or `incomplete`.
        self.outcome = ""
        #: What the sites that it relies on had when they were first looked at, and its code then.
        self._relied_on: dict[str, tuple[object, object]] = {}
        #: Every site that was put in place and not taken out, also in an earlier execution of its module.
        self.installed: list[InstalledSite] = []
        self._announced = False
        #: Whether it was in place before it was taken out: what it had counted stays in the ledger.
        self.was_in_place = False

    def sites(self) -> list[tuple[TargetVerdict, Replacement]]:
        """Return what is to be replaced according to the verdict, target by target."""
        if self.verdict is None or self.verdict.verdict != "apply":
            return []
        found = [(target, variant_of(self.patch, target)) for target in self.verdict.targets]
        return [(target, one) for target, variant in found if variant for one in variant.replacements]

    def relied_on(self) -> list[tuple[TargetVerdict, str, object]]:
        """Return the sites that it relies on for what it replaces, with their modules if those are there."""
        targets = self.verdict.targets if self.sites() and self.verdict is not None else ()
        variants = [(target, variant_of(self.patch, target)) for target in targets]
        sites = [(target, site) for target, variant in variants if variant for site in variant.relied_on()]
        found = [(target, site, sys.modules.get(site.partition(":")[0])) for target, site in sites]
        return [each for each in found if each[2] is not None]

    def holds(self, module: object, site: str) -> bool:
        """Return whether a site of this very module object has our replacement, be it by inheritance."""
        parent, raw = current(module, site, inherited=True)
        # In a spawned process, `multiprocessing` runs the script in one module and copies it into another.
        copied = bool(run_as(module))
        mine = [item for item in self.installed if item.site == site and item.after is raw]
        return any(item.parent is parent or copied for item in mine)

    def mark_past(self, module: str) -> None:
        """Note that a module has been executed again: sites of it that are not in place any more are past."""
        for site in self.installed:
            is_there = site.in_place and current(site.module, site.site)[0] is site.parent
            if site.site.partition(":")[0] == module and not is_there:
                site.past = True

    def revert(self) -> None:
        """Take out every site, the last one first, and log what could not be taken out."""
        left = take_out(self.installed)
        self.was_in_place |= bool(self.installed)
        self.installed = []
        for text in left:
            log.warning(f"left behind by {self.patch.id}: {text}")

    def end(self, outcome: str, reason: str) -> None:
        """Take everything out, and stay out."""
        self.revert()
        self.state = "failed" if outcome in ("failed", "incomplete") else "skipped"
        self.outcome, self.reason = outcome, reason
        if outcome == "conflict" and self.verdict is not None:
            self.verdict = self.verdict.replace(verdict=outcome, reason=reason)

    def settle(self) -> None:
        """Set the state from what is in place now, and warn once of a site that was lost."""
        if self.state in (*ENDED, "reverted"):
            return
        statuses = self._sites()
        faults = [f"{status.site} {text}" for status, *texts in statuses for text in texts if text]
        optional = [target.project.name for target in self.patch.targets if target.optional]
        if faults:
            self.state, self.reason = "incomplete", "; ".join(faults)
        elif statuses:
            needed = [status.state for status, *_ in statuses if status.project not in optional]
            self.state, self.reason = "waiting" if "waiting" in needed else "applied", ""
        for status, _, lost in statuses:
            if lost:
                log.warning(f"lost {self.patch.id}: {status.site} {lost}")

    def announce(self) -> None:
        """Log once that the patch is in place."""
        if self._announced or self.verdict is None or self.state != "applied":
            return
        self._announced = True
        note = self.verdict.reason
        # The job's log names each patch that applies only because the user has proven and trusts it.
        say = log.of_job if any(target.trusted for target in self.verdict.targets) else log.own
        what = counted(len(self.sites()), "site")
        say(f"applied {self.patch.id} to {self.verdict.where()} ({what}){f': {note}' if note else ''}")

    def status(self, *, wait: bool = True) -> PatchStatus:
        """Return this entry as data. Without `wait`, leave out figures that must be fetched from a device."""
        return PatchStatus(
            patch=self.patch.id,
            state=self.state,
            reason=self.reason,
            verdict=self.verdict,
            sites=tuple(status for status, *_ in self._sites()),
            effect=self.effect(wait=wait),
        )

    def effect(self, *, wait: bool) -> Effect | None:
        """Return what it has counted, also before it was taken out; `None` if it never was in place."""
        found = effect_of(module_of(self.patch.id), wait=wait)
        was = self.installed or (self.state == "reverted" and self.was_in_place)
        return found if was or (found is not None and found.reached) else None

    def _sites(self) -> list[tuple[SiteStatus, str, str]]:
        """Return the state of each site now, who still holds the original, and what has replaced ours.

        The two texts are empty if nothing is wrong.
        """
        found = []
        for target, replacement in self.sites():
            site = replacement.site
            state = self.state if self.state in (*ENDED, "reverted") else "waiting"
            held = lost = ""
            wrapped = False
            for module, mine in self._copies(site):
                parent, raw = current(module, site, inherited=True)
                here = next((item for item in mine if item.parent is parent and item.after is raw), None)
                state = "applied"
                if here is None:
                    lost = f"was replaced since by {describe(raw)}"
                    wrapped = any(holds(raw, item.after) for item in mine)
                elif here.was_edited:
                    lost = f"has other code since, {describe(raw)}"
                elif here.stale:
                    held = f"is still held by something that took it {here.stale}"
            state = "incomplete" if held or lost else state
            status = SiteStatus(site=site, project=target.project, state=state, wrapped=wrapped and not held)
            found.append((status, held, lost))
        return [*found, *self._changed()]

    def _changed(self) -> list[tuple[SiteStatus, str, str]]:
        """Return the same of functions that it relies on, if somebody has replaced them since."""
        found = []
        for target, site, module in self.relied_on() if self.installed else ():
            now = upstreams(module, site)
            code = getattr(now, "__code__", None)
            was, its_code = self._relied_on.setdefault(site, (now, code)) if now is not None else (None, None)
            # A module that is executed again, from the same source, has the same code.
            if type(was) is FunctionType and not (type(now) is FunctionType and code == its_code):
                raw = current(module, site, inherited=True)[1]
                wrapped = now is not was and holds(raw, was)
                status = SiteStatus(site=site, project=target.project, state="incomplete", wrapped=wrapped)
                found.append((status, "", f"is relied on, and was replaced since by {describe(raw)}"))
        return found

    def _copies(self, site: str) -> list[tuple[object, list[InstalledSite]]]:
        """Return the modules that have a replaced site, the imported one first, with what was put there."""
        mine = [item for item in self.installed if item.site == site]
        imported = [item for item in mine if not run_as(item.module)]
        module = sys.modules.get(site.partition(":")[0])
        found = [(module, imported)] if module is not None and imported else []
        return [*found, *((item.module, [item]) for item in mine if run_as(item.module) and not item.past)]
