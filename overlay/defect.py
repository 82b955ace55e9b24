"""What a known defect is: the vocabulary in which the records of `overlay.patches._defects` are written.

Everything here is data, which no trainer imports at its start. `overlay.source.known_defects` judges an
installation by it, `overlay.source.conditions` the settings of a job.
"""

from __future__ import annotations

from overlay.model.record import Record
from overlay.patch import Project

#: What a defect does to a job, the worst first. What nobody notices is the worst.
HARMS: dict[str, str] = {
    "silent-wrong": "numbers, data or checkpoints are wrong, and nothing says so",
    "hang": "the job stands still until something times out",
    "out-of-memory": "memory runs out, or is held needlessly",
    "crash": "the job ends with an error",
    "slow": "the job waits for work that could be fast",
}


class Setting(Record):
    """A setting, and the values under which a job hits a defect: one of `above`, `among`, `other`."""

    #: As the upstream spells it: an argument of a command line with underscores (`context_parallel_size`), or
    #: the end of a path in a configuration (`algorithm.adv_estimator`).
    key: str
    #: Met by numbers greater than this.
    above: float | None = None
    #: Met by one of these.
    among: tuple[object, ...] = ()
    #: Met by anything but these.
    other: tuple[object, ...] = ()


class Before(Record):
    """A condition that holds in every release before `version`, whatever the settings."""

    version: str


class Beyond(Record):
    """A condition that no setting can tell, as a clause: "a tool is called"."""

    what: str


#: A condition under which a job hits a defect.
Condition = Setting | Before | Beyond


class Defect(Record):
    """One thing that is known to be wrong in releases of an upstream."""

    #: `project.what-is-wrong`, begun like the ids of patches.
    id: str
    project: Project
    #: What goes wrong, and how one notices, beyond what the harm says.
    summary: str
    #: One of `HARMS`.
    harm: str
    #: The settings under which a job hits it, in words; empty for those of the patch that fixes it.
    met: str = ""
    #: The same for a machine: a job hits it if all conditions of one alternative hold. Empty: every job does.
    when: tuple[tuple[Condition, ...], ...] = ()
    #: The sites that tell sources with the defect from others, as the project's table lists them. Empty: a
    #: source has the defect where the patch that fixes it applies.
    sites: tuple[str, ...] = ()
    #: The variants of the patch whose sources have this defect; empty for all.
    only: tuple[str, ...] = ()
    #: Where upstream discusses it, as in a patch; empty if the patch says so.
    upstream: tuple[str, ...] = ()
    #: The first release without it, `None` while there is none.
    fixed: str | None = None
    #: The test that measures it (a pytest node id), or `read`: somebody has read the source, and no run has
    #: shown it. Empty stands for the contract of the patch, and without a patch for `read`.
    shown: str = ""
    #: The id of the patch that fixes it, empty while there is none.
    patch: str = ""
    #: What to do where no patch fixes it, such as a setting to avoid. Empty if nothing is known to help.
    way_out: str = ""
    #: The test (a pytest node id) that follows `way_out` on each release with the defect, and sees right
    #: results or a refusal by upstream. Empty while nobody has tried it.
    tried: str = ""


#: The value of `Defect.shown` for a defect that somebody read in the source and no run has shown.
READ = "read"


class Dialect(Record):
    """A format in which the settings of a job are written, and the defaults of those left out."""

    #: For people: "the command line of ...".
    name: str
    #: The names of the projects whose defects such settings can tell about.
    projects: tuple[str, ...]
    #: Patterns of keys that no other dialect has: they tell which dialect a file is in.
    marks: tuple[str, ...]
    #: Upstream's defaults, by key.
    defaults: dict[str, object]
    #: What one setting says of another that is left out: (key, pattern of its value, other key, other value).
    #: The other value is `...` if only the upstream knows it. The first entry that fits counts.
    implies: tuple[tuple[str, str, str, object], ...] = ()
    #: For each setting that names a whole configuration, patterns of the names whose defaults are in
    #: `sources`. With any other name, no default is known.
    whole: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 -- a record is never changed
    #: Patterns of the words that start a program which takes exactly these settings. With any other program,
    #: no default is known.
    programs: tuple[str, ...] = ()
    #: Settings that name a file or a checkpoint which overrides what is given: (key, pattern of its value,
    #: the settings that it overrides, or none for all).
    decided: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    #: The upstream files that declare the options: Python with a parser or with classes of fields, or YAML
    #: with the whole configuration. If all are there, a setting that none declares is unknown.
    sources: tuple[str, ...] = ()
    #: For a key, patterns of longer paths that end in it and mean something else.
    aside: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 -- a record is never changed
    #: Patterns of options that `sources` do not declare, such as those of a launcher.
    passed: tuple[str, ...] = ()
    #: For a flag that switches something off, the argument that holds what it switches off.
    negated: dict[str, str] = {}  # noqa: RUF012 -- a record is never changed
    #: By project, conditions that all its defects presuppose.
    assumes: dict[str, tuple[Setting, ...]] = {}  # noqa: RUF012 -- a record is never changed


def above(key: str, number: float) -> Setting:
    """Return the condition that a setting is greater than a number."""
    return Setting(key=key, above=number)


def among(key: str, *values: object) -> Setting:
    """Return the condition that a setting is one of some values."""
    return Setting(key=key, among=values)


def other(key: str, *values: object) -> Setting:
    """Return the condition that a setting is none of some values."""
    return Setting(key=key, other=values)


def switched(key: str) -> Setting:
    """Return the condition that a switch is on."""
    return Setting(key=key, among=(True,))


def given(key: str) -> Setting:
    """Return the condition that a setting has any value that switches something on."""
    return Setting(key=key, other=(None, False, 0, ""))


def before(version: str) -> Before:
    """Return the condition that the release comes before another one."""
    return Before(version=version)


def beyond(what: str) -> Beyond:
    """Return a condition that no setting can tell."""
    return Beyond(what=what)
