"""`verl.agreement`: ranks compare their patches when verl has set up their worker or trainer."""

from typing import Any

import overlay
from overlay.compat import agreement
from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Absent, Patch, Present, around, one_target, replaced, variant

_ENGINE, _WORKERS = "verl.workers.engine.fsdp.transformer_impl", "verl.workers.fsdp_workers"
_SFT, _TRAINING = "verl.trainer.fsdp_sft_trainer", "verl.workers.engine_workers:TrainingWorker.__init__"
EFFECT = effect(__name__, "comparison", did="made", always=True)


@around
def compare(original: Any, *given: Any, **named: Any) -> None:
    """Compare the ranks where all of them come by: each raises if they differ."""
    original(*given, **named)
    if agreement.is_distributed():
        overlay.agree()
        EFFECT.changed += 1


PATCH = Patch(
    id="verl.agreement",
    summary="Compare the patches of all ranks when verl has set up a worker",
    why="Ranks that run different patches, or the same ones on different sources, train on without a word. "
    "Outside Megatron nothing initialises its parallel state, where `megatron.agreement` compares them. With "
    "the patch the ranks of a worker compare what is in force once it is set up, and all raise if they "
    "differ. In 0.6 and 0.7.0 those on FSDP and VeOmni do so as they set up sequence parallelism, "
    "and the trainer `fsdp_sft_trainer` too. In 0.7.1, those on any engine do so as they register which data "
    "parallel rank they are, and from 0.8 on when they have their engine.",
    changes=("safety",),
    met="Any job of more than one rank of verl's workers. Ranks that differ stop before they train.",
    evidence="It changes nothing that computes. Ranks that are alike go on.",
    upstream=("verl-project/verl-ascend-recipe#112", "NVIDIA-NeMo/RL#3754", "vllm-project/vllm#27940"),
    companion=True,
    without="ranks of verl's workers with other patches or other sources train on without a word",
    targets=one_target(
        VERL,
        variant(
            "0.6 and 0.7.0",
            replaced(
                "verl.workers.sharding_manager.fsdp_ulysses:FSDPUlyssesShardingManager.__init__", compare
            ),
            Present(site=_SFT),
        ),
        variant(
            "0.7.1",
            replaced("verl.single_controller.base.worker:Worker._register_dispatch_collect_info", compare),
            Absent(site=_SFT),
            Present(site=_WORKERS),
        ),
        # No method of all workers: Ray wraps those of one that verl hands to it at import.
        variant("0.8", replaced(_TRAINING, compare), Absent(site=_WORKERS)),
        # Who calls it is as it was tested: others might leave the ranks uncompared.
        tells=(
            f"{_ENGINE}:FSDPEngine._init_device_mesh",
            f"{_WORKERS}:ActorRolloutRefWorker.__init__",
            f"{_WORKERS}:CriticWorker.__init__",
            f"{_SFT}:FSDPSFTTrainer.__init__",
            _TRAINING,
        ),
    ),
)
