"""The cockpit as one screen of 80 columns."""

from __future__ import annotations

from overlay.model.text import WIDTH, wrap
from overlay.patch import CHANGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.desk.state import Applying, Cockpit
    from overlay.source.installed import Installed

#: The order in which people want to know: does my training change, does it fit, does it go on?
_ORDER = ("numbers", "memory", "hangs", "crashes", "speed", "safety")
_NEXT = {
    "overlay run": "next, before the command that starts your job:",
    "overlay audit": "next, with the folder of a checkout or another site-packages:",
}
_INDENT = " " * 9
#: Ids in a sentence, at most.
_NAMED = 4


def screen(item: Cockpit) -> str:
    """Return what bare `overlay` prints."""
    lines = [_cut(f"overlay {item.version} on Python {item.python}, {item.executable}"), ""]
    lines += _projects(item.projects)
    lines += ["", *_patches(item.patches), *_defects(item)]
    armed = "armed: yes, every Python process that starts here and now"
    lines.append(armed if item.armed else wrap(f"armed: no, {item.reason}", " " * 7, first=""))
    words = " ".join(item.next.split()[:2])
    head = _NEXT.get(words, "next:")
    lines += [f"{head} {item.next}"] if len(head) + 1 + len(item.next) <= WIDTH else [head, f"  {item.next}"]
    return "\n".join(lines)


def _projects(projects: Sequence[Installed]) -> list[str]:
    there = [one for one in projects if one.version]
    absent = [one.project for one in projects if not one.version]
    names = max((len(one.project) for one in there), default=0)
    versions = max((len(one.version) for one in there), default=0)
    lines, before = [], ""
    for one in there:
        where = "beside it" if one.where == before else one.where
        lines.append(_cut(f"{one.project:<{names}}  {one.version:<{versions}}  {where}".rstrip()))
        before = one.where
    return [*lines, *([wrap(f"not installed here: {', '.join(absent)}")] if absent else [])]


def _patches(patches: Sequence[Applying]) -> list[str]:
    if not patches:
        return ["no patch that is selected applies to what is installed here"]
    by_first: dict[str, list[Applying]] = {}
    for one in patches:
        by_first.setdefault(_first(one.changes), []).append(one)
    count = f"{len(patches)} patches apply" if len(patches) > 1 else "1 patch applies"
    lines = [f"{count}. What each changes in a job (overlay explain ID says when):"]
    for first in (*_ORDER, ""):
        if first in by_first:
            label = f"{first or 'unsaid':<{len(_INDENT)}}"
            lines.append(wrap(_named(by_first[first]), _INDENT, first=label))
    return lines


def _first(changes: Sequence[str]) -> str:
    return next((word for word in _ORDER if word in changes), "")


def _named(patches: Sequence[Applying]) -> str:
    """Return patches as `project: name, name (what else it changes); project: name`."""
    families: dict[str, list[str]] = {}
    for one in patches:
        family, _, name = one.patch.partition(".")
        others = [word for word in one.changes if word not in (_first(one.changes), "safety")]
        families.setdefault(family, []).append(f"{name} ({', '.join(others)})" if others else name)
    return "; ".join(f"{family}: {', '.join(names)}" for family, names in families.items())


def _defects(item: Cockpit) -> list[str]:
    found = item.defects
    count = f"{found.present} known defects are" if found.present != 1 else "1 known defect is"
    text = f"{count} in what is installed: {len(found.mended)} mended by these patches"
    if found.left:
        text += f", {len(found.left)} left: {_some(found.left)} (`overlay audit`)"
    lines = [wrap(text)]
    if found.unknown:
        lines.append(wrap(f"not known of this source: {_some(found.unknown)}"))
    return lines


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _cut(line: str) -> str:
    """Return a line with a path, shortened in its middle if it does not fit."""
    if len(line) <= WIDTH:
        return line
    kept = WIDTH - 3
    end = kept // 2
    return f"{line[: kept - end]}...{line[-end:]}"


assert set(_ORDER) == set(CHANGES)  # noqa: S101 -- a change that is added to one must be to the other
