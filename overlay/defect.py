"""What a known defect is: the vocabulary in which the records of `overlay.patches._defects` are written.

Everything here is data, and none of it is imported where a trainer starts. What is judged by it is in
`overlay.desk.audit`.
"""

from __future__ import annotations

from overlay.model.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from typing import Union

    from overlay.patch import Project

    #: What the settings of a job say of a defect.
    Condition = Union["Setting", "Before", "Beyond"]  # noqa: UP007 -- they are strings

#: What a defect does to a job, the worst first: that which nobody notices.
HARMS: dict[str, str] = {
    "silent-wrong": "numbers, data or checkpoints are wrong, and nothing says so",
    "hang": "the job stands still until something times out",
    "out-of-memory": "memory runs out, or is held needlessly",
    "crash": "the job ends with an error",
    "slow": "the job waits for work that could be fast",
}


class Setting(Record):
    """A setting, and the values of it under which a defect is met, by one of `above`, `among`, `other`."""

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
    """A condition that releases before one bring, and no setting: the defect is wider there."""

    version: str


class Beyond(Record):
    """Something that a defect takes to be met and that no setting tells, as a clause: "a tool is called"."""

    what: str


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
    #: The same for a machine: it is met if all conditions of one alternative are. None at all: by every job.
    when: tuple[tuple[Condition, ...], ...] = ()
    #: The sites by which sources that have it are told from others; the table of the project says which those
    #: are. Empty for a defect that a source has where the patch that fixes it applies.
    sites: tuple[str, ...] = ()
    #: Of the variants of the patch, the names of those that have this defect; empty for all that apply.
    only: tuple[str, ...] = ()
    #: Where upstream discusses it, as in a patch; empty for what the patch names.
    upstream: tuple[str, ...] = ()
    #: The first release without it, `None` while there is none.
    fixed: str | None = None
    #: The test that measures it (a pytest node id), or `read`: in the source, and no run has shown it. Empty
    #: for the contract of the patch, which upstream alone breaks, and without a patch for `read`.
    shown: str = ""
    #: The id of the patch that fixes it, empty while there is none.
    patch: str = ""
    #: What to do where no patch fixes it: a setting to avoid, something to use in its place. Empty if nothing
    #: that is known helps.
    way_out: str = ""
    #: The test that does what `way_out` says and sees what is right, or upstream refuse, on each release
    #: that has the defect (a pytest node id). Empty while nobody has tried it.
    tried: str = ""


#: What `Defect.shown` says of a defect that was found in the source and that no run has shown.
READ = "read"


class Dialect(Record):
    """A way in which settings of jobs are written, and the defaults of what is left out."""

    #: For people: "the command line of ...".
    name: str
    #: Whose defects such settings can tell about, by name.
    projects: tuple[str, ...]
    #: Patterns of keys that are in no other dialect: what a file is recognised by.
    marks: tuple[str, ...]
    #: Upstream's defaults, by key.
    defaults: dict[str, object]
    #: What one setting says of another that is left out: (key, pattern of its value, other key, value of
    #: that, or `...` if the upstream decides it by what no table here has). The first that fits counts.
    implies: tuple[tuple[str, str, str, object], ...] = ()
    #: By the key of a setting that names a whole configuration, patterns of those whose defaults are in
    #: `sources`: beside another one no default is known.
    whole: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 -- a record is never changed
    #: Patterns of the words by which the programs are started that take these settings and no others: with
    #: another one, no default is known.
    programs: tuple[str, ...] = ()
    #: Settings, with patterns of their values, that name a file or a checkpoint which goes before what is
    #: given, and the settings that it decides; none for all.
    decided: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    #: Files of the upstreams that declare the options: Python with a parser or with classes of fields, or
    #: YAML with the whole configuration. Where all are there, what a file of settings names besides is
    #: unknown.
    sources: tuple[str, ...] = ()
    #: By the end of a path, patterns of those that end so and mean something else.
    aside: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 -- a record is never changed
    #: Patterns of keys that are options all the same: of what starts a job, or made as an upstream runs.
    passed: tuple[str, ...] = ()
    #: Of flags that switch something off, the argument in which the upstream keeps what they switch off.
    negated: dict[str, str] = {}  # noqa: RUF012 -- a record is never changed
    #: What the defects of a project take to be so besides, by its name.
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
    """Return the condition that a setting has a value that switches something on, whatever it is."""
    return Setting(key=key, other=(None, False, 0, ""))


def before(version: str) -> Before:
    """Return the condition that the release comes before another one."""
    return Before(version=version)


def beyond(what: str) -> Beyond:
    """Return what is to be the case and no setting tells."""
    return Beyond(what=what)
