"""The known defects of the upstreams, a file for each project: `DEFECTS`, records of `overlay.defect`.

`overlay audit` loads them, and no trainer does. A defect that a patch fixes leaves to the patch what that
says: the sources, the settings in words, the references, the test. Of the others each names the test that
measures it, or says that it was read in the source and that no run has shown it.
"""

from __future__ import annotations

from overlay.defect import Defect
from overlay.patches._defects.megatron import DEFECTS as MEGATRON
from overlay.patches._defects.megatron_open import DEFECTS as MEGATRON_OPEN
from overlay.patches._defects.miles import DEFECTS as MILES
from overlay.patches._defects.slime import DEFECTS as SLIME
from overlay.patches._defects.slime_open import DEFECTS as SLIME_OPEN
from overlay.patches._defects.verl import DEFECTS as VERL
from overlay.patches._defects.verl_open import DEFECTS as VERL_OPEN

#: All of them. They are named here, so that a file that is missing is an error.
DEFECTS: tuple[Defect, ...] = (*MEGATRON, *MEGATRON_OPEN, *MILES, *SLIME, *SLIME_OPEN, *VERL, *VERL_OPEN)
