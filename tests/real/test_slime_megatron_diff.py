"""slime's own changes to the source of Megatron: what they touch is not patched unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overlay.runtime.engine import Engine
from overlay.source.registry import load_patches
from overlay.source.source import InstalledTree
from overlay.verdict import LOUD
from records import _support_print

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.verdict import Verdict

pytestmark = pytest.mark.real

#: An image of slime, the Megatron-Core in it, and what slime's diff touches of what patches rely on.
IMAGE, MEGATRON = "slime image v0.2.0", "megatron-core==0.14.0"
TOUCHED = {
    "megatron.cp-comm-type-by-layer": [
        "megatron.core.transformer.transformer_layer:TransformerLayer.__init__"
    ],
    "megatron.dynamic-cp-names": ["megatron.core.transformer.attention:Attention.forward"],
    "megatron.mtp-loss-scale": ["megatron.core.transformer.multi_token_prediction:roll_tensor"],
    "megatron.mtp-without-tokens": ["megatron.core.transformer.multi_token_prediction:roll_tensor"],
}


def is_ours(verdict: Verdict) -> bool:
    return verdict.patch.startswith("megatron.")


def test_what_the_diff_touches_is_refused_and_the_rest_applies(
    release: Callable[[str], Path], listed: Callable[[str], Path]
) -> None:
    plain, patched = release(MEGATRON), listed(IMAGE)
    before, after = (
        {verdict.patch: verdict for verdict in Engine().plan_each(str(tree)).verdicts if is_ours(verdict)}
        for tree in (plain, patched)
    )
    tried = _support_print.recorded()[IMAGE]
    trees = InstalledTree(str(plain)), InstalledTree(str(patched))
    touched = {}
    for name, verdict in after.items():
        targets = load_patches()[name].targets
        ours = [target for target in targets if target.project.name.startswith("megatron")]
        sites = {site for target in ours for site in target.sites() if ":" in site}
        changed = sorted(site for site in sites if trees[0].digest(site) != trees[1].digest(site))
        touched.update({name: changed} if changed else {})
        if changed:
            # What is done there was tried on the image itself.
            assert verdict.verdict in LOUD or verdict.verdict == tried[name]
        else:
            assert verdict.verdict == before[name].verdict
            assert verdict.verdict in ("apply", "not-needed")
    assert touched == TOUCHED
