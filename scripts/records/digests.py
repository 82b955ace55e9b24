"""Say which sources of a patch's sites are known on each release, and what is new in those that are not.

    ./scripts/matrix digests verl.sft-balance             # each listed release that can be had
    ./scripts/matrix digests verl.sft-balance --contract  # and does the contract hold on what is new?
    ./scripts/matrix digests verl.sft-balance --only main # releases with that in their names
    ./scripts/matrix digests verl.sft-balance --write     # ask of each, once the contract has been run on it

Of a source that is new it prints the difference to the nearest known one, that with the fewest changed lines,
and the line to write once a person has read it: whether the patch is right there is not for a digest to say.
With `--write` it asks that person, never of a source on which the contract is broken, and writes what is said
yes to. The versions of a variant stay as they are.
New is what is not known where the patch is `unsupported`; what needs no patch is left alone. Exit status 1 if
anything is left that is new.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.catalogue.registry import load_patches, module_of
from overlay.errors import OverlayError
from overlay.patch import Known
from records import _support_checks, _write_digests, support
from sources import releases
from tortures._upstreams import Pristine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.patch import Patch


class Source(NamedTuple):
    """What stands at a site of a release."""

    release: str
    folder: Path
    site: str
    digest: str
    text: str
    #: What is decided for the patch on the release.
    verdict: str


def known(patch: Patch, *verdicts: str) -> dict[str, list[str]]:
    """Return by site the digests that variants know: all of them, or those with some verdicts."""
    found: dict[str, list[str]] = {}
    for variant in (variant for target in patch.targets for variant in target.variants):
        for condition in variant.shape if not verdicts or variant.verdict in verdicts else ():
            if isinstance(condition, Known):
                digests = found.setdefault(condition.site, [])
                digests += [one for one in condition.digests if one not in digests]
    return found


def sources(patch: Patch, missing: dict[str, str]) -> list[Source]:
    """Return what stands at each site on each release, nothing of sites that are not there."""
    found = []
    for release, folder in releases.for_patch(patch, missing):
        verdict = support.audit(release, folder).get(patch.id, {}).get("verdict", "")
        tree = Pristine((folder,))
        for site in known(patch):
            digest = tree.digest(site)
            if digest is not None:
                text = upstream_source(site, tree)
                found.append(Source(release.name, folder, site, digest, text, verdict))
    return found


def upstream_source(site: str, tree: Pristine) -> str:
    """Return what stands at a site, its decorators included, empty if nothing can be read there."""
    try:
        text, nodes = tree.source(site.partition(":")[0]) or "", tree.nodes(site)
    except OverlayError:
        return ""
    found = []
    for node in nodes:
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        decorators = [item.lineno for item in getattr(node, "decorator_list", ())]
        lines = text.splitlines()[min([start, *decorators]) - 1 : end] if start else []
        found.append(textwrap.dedent("\n".join(lines)))
    return "\n\n".join(filter(None, found))


def nearest(new: Source, others: Iterable[Source]) -> Source | None:
    """Return the source of the same site with the fewest changed lines, of others that are known."""
    return min(
        (one for one in others if one.site == new.site),
        key=lambda one: len(changed(one.text, new.text)),
        default=None,
    )


def changed(before: str, after: str) -> list[str]:
    """Return the lines of a difference that come or go."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def difference(old: Source, new: Source) -> str:
    """Return the difference between two sources of a site."""
    lines = difflib.unified_diff(
        old.text.splitlines(),
        new.text.splitlines(),
        f"{old.site} {old.release} {old.digest}",
        f"{new.site} {new.release} {new.digest}",
        lineterm="",
    )
    return "\n".join(lines)


def line(patch: Patch, new: Source, near: Source | None) -> str:
    """Return what is to be written, and where: after the digest of the nearest known source."""
    said = f'"{new.digest}",  # {new.release}'
    home = _home(patch)
    if near is None:
        return f"{home.name}: in a variant of its own, at {new.site}: {said}"
    for number, text in enumerate(home.read_text(encoding="utf-8").splitlines(), start=1):
        if near.digest in text:
            return f"{_below(home)}:{number}, after {near.digest}: {said}"
    return f"{_below(home)}, at {new.site} after {near.digest}: {said}"


def _home(patch: Patch) -> Path:
    return Path(sys.modules[module_of(patch.id)].__file__ or "")


def _below(file: Path) -> str:
    root = Path(__file__).resolve().parents[2]
    return str(file.relative_to(root) if file.is_relative_to(root) else file)


def report(patch: Patch, found: list[Source], only: str, *, contract: bool, write: bool = False) -> int:
    """Print what is known and what is new, each new source once; return how many of those are left."""
    digests = known(patch)
    standing = [one for one in found if one.digest in digests[one.site]]
    new: dict[tuple[str, str], Source] = {}
    width = max((len(one.release) for one in found), default=0)
    for one in found:
        if only not in one.release:
            continue
        is_new = one not in standing and one.verdict == "unsupported"
        # Of one that applies: in the shape of another variant.
        word = "known" if one in standing else "new" if is_new else "not needed"
        print(f"{one.release:<{width}}  {one.digest}  {word:<12}{one.site}")
        if is_new:
            new.setdefault((one.site, one.digest), one)
    near = {key: nearest(one, standing) for key, one in new.items()}
    for key, one in new.items():
        old = near[key]
        print(f"\n{difference(old, one)}" if old else f"\nno known source of {one.site} can be had here")
        print(f"write  {line(patch, one, old)}")
        print("       once the contract holds there (--contract), in a variant whose versions include it")
    written = 0
    if contract or write:
        for release in dict.fromkeys(one.release for one in new.values()):
            mine = [(key, one) for key, one in new.items() if one.release == release]
            added = [(one.site, old.digest, one.digest) for key, one in mine if (old := near[key])]
            outcome = _support_checks.with_digests(patch.id, mine[0][1].folder, added)
            print(f"contract on {release}: {outcome}")
            if write:
                written += _written(patch, added, outcome)
    return len(new) - written


def _written(patch: Patch, added: list[tuple[str, str, str]], outcome: str) -> int:
    """Ask of each source of a release, and return how many digests were written."""
    if outcome != _support_checks.PASSED and not outcome.startswith(_support_checks.LEFT):
        print("nothing is written: the contract has to hold there")
        return 0
    written = 0
    for site, near, new in added:
        if not _write_digests.ask(f"write {new} after {near}, {site}?"):
            continue
        if _write_digests.insert(_home(patch), near, new):
            written += 1
            print(f"written to {_below(_home(patch))}")
        else:
            print(f"not written: {near} has a name of its own, or does not stand in {_below(_home(patch))}")
    return written


def main(arguments: list[str]) -> int:
    """Print the report; 1 if a source is new."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patch", metavar="ID")
    parser.add_argument("--contract", action="store_true", help="run the contract where a source is new")
    parser.add_argument("--only", default="", metavar="TEXT", help="look for new sources on these alone")
    parser.add_argument(
        "--write", action="store_true", help="run the contract, ask, and write what is accepted"
    )
    options = parser.parse_args(arguments)
    patches = load_patches()
    if options.patch not in patches:
        parser.error(f"there is no patch {options.patch!r}")
    patch, missing = patches[options.patch], dict[str, str]()
    found = sources(patch, missing)
    count = report(patch, found, options.only, contract=options.contract, write=options.write)
    for release, why in missing.items():
        print(f"{release}: not fetched: {why}")
    return int(bool(count))
