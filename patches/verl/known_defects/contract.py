"""The configuration of a job decides which known defects it is told of: none is named that it excludes."""

import random

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong in what the configurations of drawn jobs are said to meet."""
    from verl.utils.tracking import Tracking

    import overlay

    def told(estimator: str, critic: bool | None, actor: int, critics: int) -> set[str]:
        def trained(size: int) -> dict[str, object]:
            megatron = {"context_parallel_size": size, "param_offload": True}
            return {"strategy": "megatron", "megatron": megatron, "use_dynamic_bsz": size > 1}

        config = {
            "actor_rollout_ref": {"actor": trained(actor), "ref": trained(8), "rollout": {"name": "vllm"}},
            "critic": {"enable": critic, **trained(critics)},
            "algorithm": {"adv_estimator": estimator},
            "trainer": {"logger": ["console"], "use_legacy_worker_impl": "disable", "resume_mode": "disable"},
        }
        Tracking("project", "run", default_backend=["console"], config=config)
        met = overlay.status().met
        if any(one.state != "mended" and not one.way_out for one in met):
            raise RuntimeError(f"a defect without a way out: {met}")
        return {one.defect for one in met}

    draw = random.Random(seed)
    if not told("gae", None, 2, 2):
        return "a job of actor and critic that offload is told of nothing"
    # What the reference or a critic that is not there would meet is not the job's.
    estimator, size = draw.choice(["grpo", "rloo"]), draw.choice([1, 2])
    alone = told(estimator, None, size, size)
    if alone != told(estimator, False, size, 3 - size):
        return "a critic that is not there changes what the job meets"
    if any("critic" in name for name in alone):
        return f"a job without a critic is told of {sorted(alone)}"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "verl.known-defects"), before=("verl.protocol",))
