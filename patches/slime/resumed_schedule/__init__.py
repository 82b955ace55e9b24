"""`slime.resumed-schedule`: a resumed run's learning rate goes on from where the checkpoint had it.

Megatron's checkpoint brings the schedule with it, and slime 0.2.2 and 0.2.3 advance it once more. The
function that does so runs as it is, with a loader that notes where the schedule stands, and the schedule is
put back there. A checkpoint without a schedule is left to slime.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
from overlay.patches.slime.resumed_schedule.fix import make_initialize

_INITIALIZE = "slime.backends.megatron_utils.model:initialize_model_and_optimizer"

PATCH = Patch(
    id="slime.resumed-schedule",
    summary="A resumed run's learning rate goes on from where the checkpoint had it",
    why=(
        "After it has loaded a checkpoint, schedule included, slime 0.2.2 and 0.2.3 advance the schedule by "
        "iteration * global_batch_size samples a second time: with decay, a run that resumes half-way goes "
        "on with the learning rate of its end, and warm-up is skipped. With the patch the schedule stays "
        "where the checkpoint had it, as in slime 0.2.4. Where the checkpoint's schedule is not loaded "
        "(--no-load-optim), it stands where slime puts it."
    ),
    changes=("numbers",),
    met=(
        "A run that resumes from a checkpoint with its optimizer, with a learning rate or weight decay that "
        "changes."
    ),
    upstream=("THUDM/slime#1775",),
    evidence="slime's commit f9f7b56 (#1775, in 0.2.4) takes the second advance out.",
    remove=Removal(
        version="0.2.4",
        when="slime 0.2.4 leaves the schedule to the checkpoint",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        variant("0.2.2", ">=0.2.1.dev0,<0.2.5.dev0", replaced(_INITIALIZE, make_initialize, "cb6c27aaf876")),
        not_affected(
            "before 0.2.2",
            "<0.2.2.dev0",
            known(_INITIALIZE, "cb83bfc4ee3d", "96595bc77ef3", "4e4d286de4be"),
            reason="slime leaves the schedule to the checkpoint before 0.2.2",
        ),
        # The tag v0.2.4 calls itself 0.2.3.
        fixed(
            "0.2.4",
            ">=0.2.2.dev0",
            known(_INITIALIZE, "4e4d286de4be", "01087b63ec66", "0272308be757", "5fba81dce298"),
            reason="slime leaves the schedule to the checkpoint",
        ),
    ),
)
