"""What a patch is: the vocabulary in which each file of `overlay.patches` is written.

Everything here is data. Deciding is in `overlay.source.decide`, installing in `overlay.runtime.sites`.
"""

from __future__ import annotations

from overlay.model.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    #: Builds the function that takes the place of `original`. It is called once, when the target module
    #: has been imported, and may import whatever the upstream itself needs (torch included). It must
    #: return a plain function with the parameters of `original`, plus those in `Replacement.adds`.
    Factory = Callable[[Any, ModuleType], Callable[..., Any]]

    #: Reads a file of the upstream by its path relative to the folder that holds the top-level package,
    #: `None` if there is no such file. `package/../setup.py` is a file beside a package.
    ReadFile = Callable[[str], "str | None"]


#: What can change in a job, as it is seen from outside.
CHANGES = ("numbers", "memory", "speed", "hangs", "crashes", "safety")


class Project(Record):
    """An upstream project, as far as the engine needs to know one."""

    #: Name in messages and in patch ids.
    name: str
    #: Names under which it is published, the usual one first.
    distributions: tuple[str, ...]
    #: A module that exists in every installation of it, and in nothing else.
    marker: str
    #: Reads the version from the project's own files; `None` if they do not tell. Metadata is asked
    #: second: it can belong to another copy than the one that gets imported.
    read_version: Callable[[ReadFile], str | None] | None = None
    #: Top-level packages beside that of the marker.
    beside: tuple[str, ...] = ()

    def packages(self) -> tuple[str, ...]:
        """Return its top-level packages."""
        return (self.marker.partition(".")[0], *self.beside)


class _Fact(Record):
    """Something that is asked of a site."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and which of the facts it is."""
        return {"expects": type(self).__name__.lower(), **super().to_dict()}


class Present(_Fact):
    """A site (or, without a colon, a module) that must exist, whatever its source."""

    site: str


class Absent(_Fact):
    """A site (or, without a colon, a module) that must not exist."""

    site: str


class Calls(_Fact):
    """A function that a variant relies on for one call; the rest of it may differ.

    Each run that does not raise first must call `callee`, a name of its module: in a statement of the
    function's own body, under no condition, with no `return` before it. The function may be neither
    decorated, nor bound twice, nor a generator. `callee` must be as it was tested (`variant` asks for that).
    """

    site: str
    callee: str
    #: Whether the call is the last statement and the only mention of the name: all else is done by then.
    last: bool = False


#: What a variant can ask of a site other than to be as it was tested.
Fact = Present | Absent | Calls


class Replacement(Record):
    """One site, and the factory of what takes its place."""

    site: str
    make: Factory
    #: Keywords that it takes beyond those of the original, each with a default: what callers of a later
    #: upstream pass, and look for with `inspect.signature`.
    adds: tuple[str, ...] = ()
    #: Whether the patch adds the name: the factory gets `None` for the original, and `disable()` removes
    #: the name again.
    new: bool = False


class Variant(Record):
    """How a patch is made for one shape of upstream."""

    #: Short and unique within its target, such as "0.8".
    name: str
    #: Sites that must be as on a source that the patch was tested on, to the letter.
    same: tuple[str, ...] = ()
    #: What else the source must look like: facts that tell this variant from others.
    facts: tuple[Fact, ...] = ()
    replacements: tuple[Replacement, ...] = ()

    def sites(self) -> tuple[str, ...]:
        """Return all sites that this variant asks about."""
        replaced = (item.site for item in self.replacements)
        return tuple(dict.fromkeys((*replaced, *self.same, *(fact.site for fact in self.facts))))

    def relied_on(self) -> tuple[str, ...]:
        """Return the sites that must do what they did where it was tested."""
        called = (fact.site for fact in self.facts if isinstance(fact, Calls))
        return tuple(site for site in (*self.same, *called) if ":" in site)


def replaced(site: str, make: Factory, *, adds: tuple[str, ...] = (), new: bool = False) -> Replacement:
    """Return the replacement of a site. The words are those of `Replacement`."""
    return Replacement(site=site, make=make, adds=adds, new=new)


def variant(name: str, *parts: Replacement | Fact | str) -> Variant:
    """Return a variant of what is replaced, the sites that it relies on, and facts that tell it from others.

    Raises `ValueError` for a site that is named twice: only one of the two would be asked about.
    """
    sites = [part if isinstance(part, str) else part.site for part in parts]
    if twice := {site for site in sites if sites.count(site) > 1}:
        raise ValueError(f"variant {name!r} names {', '.join(sorted(twice))} twice")
    replacements = tuple(part for part in parts if isinstance(part, Replacement))
    facts = tuple(part for part in parts if isinstance(part, (Present, Absent, Calls)))
    same = [part for part in parts if isinstance(part, str)]
    # What the callee does matters as much as that it is called.
    called = [f"{one.site.partition(':')[0]}:{one.callee}" for one in facts if isinstance(one, Calls)]
    same += sorted({*called}.difference(sites))
    return Variant(name=name, same=tuple(same), facts=facts, replacements=replacements)


def around(function: Callable[..., Any]) -> Factory:
    """Return the factory of a replacement that calls `function(original, *args, **kwargs)`.

    So `function` names the parameters that it reads, and hands on the rest. The replacement has the signature
    of the original, and a default that `function` names must be the original's. Use it as a decorator.
    """
    from functools import wraps

    @wraps(function)
    def make(original: Any, _module: ModuleType) -> Callable[..., Any]:
        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        return replacement

    return make


class Target(Record):
    """One project that a patch touches, with the variants known of it."""

    project: Project
    variants: tuple[Variant, ...]
    #: Whether the patch applies without this target. If it is installed, its source must still be known.
    optional: bool = False
    #: The name of another target's project, for whose sake alone this one is changed. If that one needs
    #: nothing (it is not installed, or another release), this one is `not-needed`.
    serves: str = ""
    #: More sites that tell sources apart, such as the one where upstream has fixed the defect.
    tells: tuple[str, ...] = ()

    def modules(self) -> list[str]:
        """Return the modules of the sites that any variant replaces."""
        return [site.partition(":")[0] for site in self.replaced()]

    def replaced(self) -> list[str]:
        """Return the sites that any variant replaces."""
        return [item.site for variant in self.variants for item in variant.replacements]

    def sites(self) -> list[str]:
        """Return all sites that are asked about, whatever the variant, sorted."""
        return sorted({*self.tells, *(site for variant in self.variants for site in variant.sites())})


def one_target(project: Project, *variants: Variant, tells: tuple[str, ...] = ()) -> tuple[Target, ...]:
    """Return the targets of a patch that touches one project, as most do."""
    return (Target(project=project, variants=variants, tells=tells),)


class Patch(Record):
    """One fix. The first target is the one that its id is named after."""

    id: str
    #: One line, no full stop.
    summary: str
    #: What goes wrong without it, for whom, and what the patch does about it.
    why: str
    #: Where upstream discusses it: `owner/repo#number`.
    upstream: tuple[str, ...]
    targets: tuple[Target, ...]
    #: Ids of patches that must be applied as well.
    requires: tuple[str, ...] = ()
    #: Ids of patches whose work it does as well: where it applies, they are not needed.
    includes: tuple[str, ...] = ()
    #: Whether every selection brings it along, unless a term drops it: it fixes nothing itself, and serves
    #: the patches that do.
    companion: bool = False
    #: Of a companion: what a job does without it, as a clause of a warning.
    without: str = ""
    #: What changes in a job that runs, of `CHANGES`; a patch that merely refuses or reports says `safety`.
    changes: tuple[str, ...] = ()
    #: The settings under which a job hits the defect, in a sentence: under others the patch changes nothing.
    met: str = ""
    #: Whether only its id selects it, neither `all` nor a glob. An opt-in patch is a choice: our own reading
    #: where upstream's can be defended, or a trade of one thing for another. Every other patch is exact: it
    #: gives what upstream means to compute, or keeps a job from a crash, a hang or running out of memory.
    opt_in: bool = False
    #: What shows that an exact patch is exact: an upstream commit, a sentence of upstream's documentation, a
    #: reference of one process in float64. Of an opt-in patch, what it trades or which reading it takes.
    evidence: str = ""

    def modules(self) -> tuple[str, ...]:
        """Return the modules that it would change in any variant, in the order of the file."""
        return tuple(dict.fromkeys(name for target in self.targets for name in target.modules()))


class Contract(Record):
    """What a patch promises, as properties that are tried on fresh inputs, on a CPU, in seconds.

    The folder of a patch has it in `contract.py`, as `CONTRACT`. It ships with the patch and needs neither a
    test framework nor a checkout: one contract serves the patch's tests on each release, the support matrix,
    attacks with changed sources, and whoever asks whether the patch is right on what is installed here. It
    runs in a process of its own, and imports what is heavy inside.
    """

    #: Gets a seed, puts the patch in place, and returns what does not hold, empty if all does. An exception
    #: says that the patch, or the upstream under it, refused: that is not silent.
    check: Callable[[str], str]
    #: Compares what the patch does with what this very upstream does without it, where upstream is right, and
    #: returns the first difference: a change of upstream's that the patch would undo. A row of the table is
    #: written only if this passes too. It runs after `check`, in the same process, and takes the patch out.
    alike: Callable[[str], str] | None = None
    #: Modules that take long to import, and that nothing patches: imported once, before a source is changed.
    before: tuple[str, ...] = ()
    #: Whether it starts programs: they see a source changed on disk, but none changed in this process.
    starts: bool = False

    def strictly(self, seed: str) -> str:
        """Return what does not hold, or what the patch would undo of an upstream that it does not know."""
        return self.check(seed) or ("" if self.alike is None else self.alike(seed))
