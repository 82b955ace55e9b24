"""`slime.metrics`: what the patches changed goes to the logger of the job, under `overlay/`.

It mends nothing. `OVERLAY_METRICS=1` selects it along with whatever else is.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Removal, not_affected, one_target, replaced, variant
from overlay.patches.slime.metrics.fix import make_log

PATCH = Patch(
    id="slime.metrics",
    summary="slime's logger gets what the patches changed, under overlay/",
    why=(
        "Whether a patch that is applied ever mattered is asked where a run is looked at: in wandb, "
        "tensorboard or what else slime logs to. Nothing upstream knows of patches. With this one, each call "
        "of slime's logger gets overlay.metrics() as well, of the patches that were reached in the process "
        "that logs."
    ),
    changes=("safety",),
    met="OVERLAY_METRICS=1. It changes no number of a job: more names are logged.",
    upstream=("THUDM/slime#801",),
    opt_in=True,
    switch="OVERLAY_METRICS",
    evidence="It adds names to what is logged, and changes no number of a job.",
    remove=Removal(
        when="overlay is not used",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        not_affected(
            "0.1",
            ">=0.0.1.dev0,<0.2.0.dev0",
            Absent(site="slime.utils.tracking_utils"),
            Absent(site="slime.utils.logging_utils"),
            reason="slime 0.1 has no function that logs: call overlay.metrics() yourself",
        ),
        variant(
            "0.2.0",
            ">=0.2.0.dev0,<0.2.2.dev0",
            replaced("slime.utils.tracking_utils:log", make_log, "043181f575eb"),
        ),
        variant(
            "0.2.2",
            ">=0.2.0.dev0,<0.4.0.dev0",
            replaced("slime.utils.logging_utils:log", make_log, "043181f575eb"),
        ),
        variant(
            "0.3.2",
            ">=0.3.0.dev0,<0.4.0.dev0",
            replaced("slime.observability.logging_utils:log", make_log, "043181f575eb"),
        ),
    ),
)
