"""All patches of a project at once, those selected by their ids alone too, on each release of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide, settle
from sources import releases
from tortures._upstreams import Pristine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real

NAMES = [line.name for line in releases.read() if line.name.startswith(("slime==", "verl=="))]


@pytest.mark.parametrize("name", NAMES)
def test_each_patch_is_decided_on_beside_all_others_as_alone(
    name: str, listed: Callable[[str], Path]
) -> None:
    tree, project = Pristine((listed(name),)), f"{name.partition('=')[0]}."
    patches = {patch: said for patch, said in load_patches().items() if patch.startswith(project)}
    alone = {patch: decide(said, tree) for patch, said in patches.items()}
    # As strict mode sees them: two that claim one site conflict.
    together = settle(patches.values(), alone, tree)
    assert {patch: (one.verdict, one.reason) for patch, one in together.items()} == {
        patch: (one.verdict, one.reason) for patch, one in alone.items()
    }
    assert any(one.verdict == "apply" for one in together.values())
