"""Patches in company: all of a project at once, and every selection that overlay or its documents print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from listed_sources import Listed

from overlay.source.decide import decide, settle
from overlay.source.registry import load_patches, tables
from overlay.source.selection import choose
from overlay.verdict import LOUD
from sources import releases
from tortures._upstreams import Pristine

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
LISTED = [line.name for line in releases.read()]
NAMES = [name for name in LISTED if name.startswith(("slime==", "verl=="))]
#: By day: the newest Megatron, and images that hold two upstreams at once.
BY_DAY = ("megatron-core==0.19.2", "slime image v0.2.4", "slime image v0.3.1", "verl image 0.8.0")


@pytest.mark.parametrize("name", NAMES)
def test_each_patch_is_decided_on_beside_all_others_as_alone(name: str, listed: Listed) -> None:
    tree, project = Pristine((listed(name),)), f"{name.partition('=')[0]}."
    patches = {patch: said for patch, said in load_patches().items() if patch.startswith(project)}
    alone = {patch: decide(said, tree, tables()) for patch, said in patches.items()}
    # As strict mode sees them: two that claim one site conflict.
    together = settle(patches.values(), alone, tree)
    assert {patch: (one.verdict, one.reason) for patch, one in together.items()} == {
        patch: (one.verdict, one.reason) for patch, one in alone.items()
    }
    assert any(one.verdict == "apply" for one in together.values())


def printed() -> set[str]:
    """Return what README, the pages and the patches tell people to select, and `all,ID` of opt-in patches."""
    patches = load_patches()
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    texts += [said for patch in patches.values() for said in (patch.why, patch.met, patch.evidence)]
    found = set(
        re.findall(r"(?:OVERLAY_PATCHES=|--patches |enable\()['\"]?([a-z*,.-]+[a-z*])", " ".join(texts))
    )
    ids = {f"all,{patch.id}" for patch in patches.values() if patch.opt_in}
    # `is` and the like are prose after `--patches`.
    return ids | {text for text in found if text in ("all", "none") or "." in text}


@pytest.mark.nightly(
    "by day a few images stand for the others", name=tuple(name for name in LISTED if name not in BY_DAY)
)
@pytest.mark.parametrize("name", LISTED)
def test_no_selection_that_is_printed_makes_patches_conflict(name: str, listed: Listed) -> None:
    tree, patches = Pristine((listed(name),)), load_patches()
    alone = {patch: decide(said, tree, tables()) for patch, said in patches.items()}
    for text in sorted(printed()):
        chosen = choose(patches, text, environ={}).ids
        settled = settle(
            [patches[patch] for patch in chosen], {patch: alone[patch] for patch in chosen}, tree
        )
        lost = {
            patch: (one.verdict, one.reason)
            for patch, one in settled.items()
            if alone[patch].verdict == "apply" and one.verdict in LOUD
        }
        assert not lost, text
