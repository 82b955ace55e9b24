"""What became of one selected patch in this process."""

from __future__ import annotations

import sys
from functools import partial
from operator import is_

from overlay import log
from overlay.effect import Effect, effect_of
from overlay.ledger import PatchStatus, SiteStatus
from overlay.model.text import counted
from overlay.patch import Patch, Replacement
from overlay.runtime.sites import (
    InstalledSite,
    chains_at,
    current,
    describe,
    function_of,
    has_chain,
    holds,
    look_again,
    run_as,
    take_out,
    upstreams,
)
from overlay.source.decide import variant_of
from overlay.source.registry import module_of
from overlay.source.source import Tree
from overlay.verdict import TargetVerdict, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.runtime.sites import Chain

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
        #: What was decided on when it was last put in place.
        self._tree = Tree()
        #: The code of the functions that it relies on, by their sites.
        self._relied_on: dict[str, list[Chain]] = {}
        variants = [variant for target in patch.targets for variant in target.variants]
        relied = {site.partition(":")[0] for variant in variants for site in variant.relied_on()}
        #: Modules of these that were there before: their files may have changed since.
        self._there_before = relied.intersection(sys.modules)
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

    def look_again(self) -> None:
        """Look whether originals are still held: somebody may have had them for a moment."""
        if look_again(self.installed):
            self.settle()
            self.announce()

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

    def status(self) -> PatchStatus:
        """Return this entry as data."""
        return PatchStatus(
            patch=self.patch.id,
            state=self.state,
            reason=self.reason,
            verdict=self.verdict,
            sites=tuple(status for status, *_ in self._sites()),
            effect=self.effect(),
        )

    def effect(self) -> Effect | None:
        """Return what it has counted, also before it was taken out; `None` if it never was in place."""
        found = effect_of(module_of(self.patch.id))
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
                own = [item for item in mine if item.parent is parent]
                here = next((item for item in own if item.after is raw), None)
                here = here or next((item for item in own if not item.past and item.adopt(raw)), None)
                state = "applied"
                if here is None:
                    lost = f"was replaced since by {describe(raw)}"
                    wrapped = any(holds(raw, partial(is_, function_of(item.after))) for item in mine)
                elif here.was_edited:
                    lost = f"has other code or defaults since, {describe(raw)}"
                elif here.stale:
                    held = f"is still held by something that took it {here.stale}"
            state = "incomplete" if held or lost else state
            status = SiteStatus(site=site, project=target.project, state=state, wrapped=wrapped and not held)
            found.append((status, held, lost))
        return [*found, *(self.changed() if self.installed else ())]

    def obstacle(self, tree: Tree) -> str:
        """Return why it must not be put in place: what it relies on is not what it was tested with.

        `tree`: what was decided on. A wrapper that came after overlay, such as a timer, is no obstacle.
        """
        self._tree = tree
        faults = [
            f"{status.site} {text}; enable overlay first"
            for status, _, text in (() if self.installed else self.changed())
            if not status.wrapped or status.site.partition(":")[0] in self._there_before
        ]
        return "; ".join(faults)

    def differs(self, name: str, module: object) -> str:
        """Return what a script has for a function that the patch relies on, if that is not the tested one."""
        targets = self.verdict.targets if self.verdict is not None else ()
        variants = [variant_of(self.patch, target) for target in targets]
        for site in [site for one in variants if one for site in one.relied_on()]:
            now = upstreams(module, site) if site.partition(":")[0] == name else None
            if now is not None and not has_chain(now, chains_at(module, site, self._tree, read=True)):
                return f"{site} is relied on, and is another one in the script that is run ({describe(now)})"
        return ""

    def changed(self) -> list[tuple[SiteStatus, str, str]]:
        """Return the same of the functions that it relies on and that somebody has replaced."""
        found = []
        replaced = {one.site for _, one in self.sites()}
        targets = self.verdict.targets if replaced and self.verdict is not None else ()
        variants = [(target, variant_of(self.patch, target)) for target in targets]
        for target, site in [(target, site) for target, one in variants if one for site in one.relied_on()]:
            module = sys.modules.get(site.partition(":")[0])
            now = upstreams(module, site)
            known = site in self._relied_on
            # A module that is still being executed may give the name something else.
            begun = getattr(getattr(module, "__spec__", None), "_initializing", False)
            if not known and (now is None or begun):
                continue
            if not known:
                before = site.partition(":")[0] in self._there_before
                self._relied_on[site] = chains_at(module, site, self._tree, read=before)
            codes = self._relied_on[site]
            # An upstream may put there what the patch replaces. Executed again, a module has the same code.
            own = f"{getattr(now, '__module__', '')}:{getattr(now, '__qualname__', '')}" in replaced
            if codes and not own and not has_chain(now, codes):
                raw = current(module, site, inherited=True)[1]
                calls = holds(raw, partial(has_chain, chains=codes))
                status = SiteStatus(site=site, project=target.project, state="incomplete", wrapped=calls)
                found.append((status, "", f"is relied on, and was replaced by {describe(raw)}"))
        return found

    def _copies(self, site: str) -> list[tuple[object, list[InstalledSite]]]:
        """Return the modules that have a replaced site, the imported one first, with what was put there."""
        mine = [item for item in self.installed if item.site == site]
        imported = [item for item in mine if not run_as(item.module)]
        module = sys.modules.get(site.partition(":")[0])
        found = [(module, imported)] if module is not None and imported else []
        return [*found, *((item.module, [item]) for item in mine if run_as(item.module) and not item.past)]
