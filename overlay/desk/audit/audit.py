"""An audit: what is known to be wrong in one installation, patch by patch and defect by defect."""

from __future__ import annotations

from overlay.defect import HARMS
from overlay.desk.audit import job_settings, settings_file
from overlay.model.record import TYPE_CHECKING, Record
from overlay.source.known_defects import Finding, dialects, judge, load_defects

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from overlay.defect import Defect
    from overlay.desk.audit.job_settings import JobSettings
    from overlay.runtime.engine import Engine
    from overlay.source.conditions import Answer
    from overlay.source.source import InstalledTree
    from overlay.verdict import Plan


class Audit(Record):
    """What is known to be wrong in one installation."""

    #: What is decided on the patches.
    plan: Plan
    #: By id.
    defects: dict[str, Defect]
    #: Those of projects that are there, the worst first.
    findings: tuple[Finding, ...]
    #: What the settings of a job say of each, by id; empty if none were given.
    answers: dict[str, Answer]
    settings: JobSettings | None = None
    #: The projects that patches are for and that are there, with their versions.
    installed: tuple[str, ...] = ()

    def of(self, *states: str) -> list[Finding]:
        """Return the findings in some states."""
        return [one for one in self.findings if one.state in states]

    def concerning(self) -> list[Finding]:
        """Return the defects that are not patched; with the settings of a job, those of them that it hits."""
        left = self.of("open", "unknown-source")
        if self.settings is None:
            return left
        return [one for one in left if self.answers[one.defect].word == "met"]

    def answered(self, word: str, *states: str) -> list[Finding]:
        """Return the findings in some states that the settings answer with `word`."""
        return [one for one in self.of(*states) if self.answers[one.defect].word == word]

    def count(self) -> str:
        """Return how many findings there are in each state."""
        counts = {
            "patched": self.of("mended"),
            "not patched": self.of("open"),
            "not known for this source": self.of("unknown-source"),
            "not in this release": self.of("not-needed"),
        }
        return ", ".join(
            f"{len(them)} {words}" for words, them in counts.items() if them or words.endswith("patched")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the plan, and a record for each defect of a project that is there."""
        data = {**self.plan.to_dict(), "defects": [self._entry(one) for one in self.findings]}
        if self.settings is not None:
            data["settings"] = {
                "file": self.settings.file,
                "dialect": self.settings.dialect.name,
                "unknown": self.settings.unknown(),
                "elsewhere": list(self.settings.elsewhere),
                "missing": list(self.settings.missing),
            }
        return data

    def _entry(self, finding: Finding) -> dict[str, Any]:
        defect = self.defects[finding.defect].to_dict()
        said = {name: defect[name] for name in ("summary", "met", "upstream", "fixed", "shown", "tried")}
        if finding.defect in self.answers:
            said["settings"] = self.answers[finding.defect].to_dict()
        return {**finding.to_dict(), **said}


def make_audit(
    engine: Engine,
    plan: Plan,
    tree: InstalledTree,
    settings: JobSettings | None = None,
    harms: Collection[str] = (),
) -> Audit:
    """Judge every known defect in a tree.

    Args:
        engine: Which patches there are.
        plan: What is decided on them there. What its selection lacks counts as not selected.
        tree: The source.
        settings: Those of a job.
        harms: The harms that are asked for; empty for all.

    """
    patches, defects, table = engine.known(), load_defects(engine.known()), engine.tested()
    verdicts = {one.patch: one for one in plan.verdicts}
    left_out = verdicts.keys() - {*plan.selection}
    each = plan
    if any(verdicts[name].verdict == "not-selected" for name in left_out):  # then without targets
        each = engine.plan_each(tree)
    verdicts |= {
        one.patch: one.replace(verdict="not-selected") for one in each.verdicts if one.patch in left_out
    }
    found = [
        judge(one, patches.get(one.patch), verdicts.get(one.patch), tree, table) for one in defects.values()
    ]
    wanted = {target.project.name for patch in patches.values() for target in patch.targets}
    here = [one for one in engine.installed(tree) if one.version and one.project in wanted]
    kept = [one for one in found if one.state != "not-installed" and one.harm in (harms or HARMS)]
    kept.sort(key=lambda one: ([*HARMS].index(one.harm), one.defect))
    answers = {}
    if settings is not None:
        answers = {
            one.defect: job_settings.answer_in(defects[one.defect], settings, one.version) for one in kept
        }
    return Audit(
        plan=plan,
        defects=defects,
        findings=tuple(kept),
        answers=answers,
        settings=settings,
        installed=tuple(sorted(f"{one.project} {one.version}" for one in here)),
    )


def read_settings(path: str, tree: InstalledTree) -> JobSettings:
    """Return the settings of a job in a file, for the upstreams in a tree. Raises `SettingsError`."""
    known = dialects()
    given = settings_file.read(path, [one for dialect in known for one in dialect.programs])
    return job_settings.recognise(path, given, known, tree.read)
