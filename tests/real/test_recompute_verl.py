"""`megatron.recompute` between the installed verl and the installed Megatron, through the import hook."""

from __future__ import annotations

import pytest
from command_line import python

pytestmark = pytest.mark.real

PROGRAM = """
import warnings
warnings.simplefilter("ignore")  # upstream's, of which there are many at import

import overlay
overlay.enable(["megatron.recompute"], strict=True)
from megatron.core.tensor_parallel.random import CheckpointFunction
from verl.models.mcore import patch

ours = CheckpointFunction.backward
stock = ours.__overlay_original__
assert stock is not ours
for _engine in range(2):
    patch.apply_patch_megatron_recomputation_backward()
assert CheckpointFunction.backward is ours, "verl's patch took its place"

CheckpointFunction.backward = staticmethod(lambda ctx, *args: stock(ctx, *args))
try:
    patch.apply_patch_megatron_recomputation_backward()
except overlay.OverlayError as error:
    assert 'overlay.enable("megatron.recompute,-megatron.recompute", strict=True)' in str(error)
else:
    raise AssertionError("somebody else's backward went unnoticed")
CheckpointFunction.backward = staticmethod(ours)

overlay.disable()
patch.apply_patch_megatron_recomputation_backward()
assert CheckpointFunction.backward.__qualname__.endswith("patch_backward"), CheckpointFunction.backward
print("done")
"""


def test_verls_engines_leave_our_backward_in_place() -> None:
    done = python("-c", PROGRAM, seconds=300, OVERLAY_PATCHES="none")
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-4000:]
