"""A rollout of one step without log-probabilities has the advantages that it has with them."""

import random
from typing import Any
from unittest.mock import MagicMock

from overlay.compat.contracts.slime import contract, on_megatron


def own_values(_args: Any, rollout_data: Any) -> None:
    """Stand for a user's function of advantages that leaves values for a loss of the user's."""
    import torch

    sizes = zip(rollout_data["response_lengths"], rollout_data["rewards"], strict=True)
    rollout_data["advantages"] = [torch.full((count,), reward) for count, reward in sizes]
    rollout_data["returns"] = rollout_data["values"] = rollout_data["own"] = rollout_data["advantages"]


@on_megatron("actor")
def wrong(seed: str, actor: Any) -> str:
    """Return what becomes of a rollout that one step is made of, empty if it is trained on rightly."""
    import torch

    from overlay.compat.slime_on_cpu.advantages import ARGUMENTS

    logs = ("log_rollout_data", "log_perf_data", "train_dump_utils", "train_metric_utils")
    vars(actor).update((name, MagicMock()) for name in ("get_data_iterator", "train", *logs))
    # slime 0.2 is told the number of micro-batches here.
    actor.get_data_iterator.return_value = MagicMock(), [1]
    actor.Timer().start("train_wait")
    draw = random.Random(seed)
    counts = [draw.randint(1, 9) for _ in range(4)]
    rewards = [draw.gauss(0, 1) for _ in counts]
    own_path = f"{__name__}.{own_values.__name__}"
    for estimator, path in (("grpo", None), ("reinforce_plus_plus_baseline", None), ("grpo", own_path)):
        args = MagicMock(**{**vars(ARGUMENTS), "normalize_advantages": False})
        args.custom_advantage_function_path = path
        args.advantage_estimator, args.loss_type = estimator, "policy_loss"
        args.save_debug_train_data = None
        for name in ("keep_old_actor", "use_critic", "get_mismatch_metrics", "use_routing_replay"):
            setattr(args, name, False)
        own = MagicMock(args=args, _active_model_tag="actor", rollout_data_postprocess=None)
        own.weights_backuper.backup_tags = ("actor",)
        data: dict[str, Any] = {
            "rewards": list(rewards),
            "response_lengths": counts,
            "total_lengths": [count + draw.randint(1, 9) for count in counts],
            "loss_masks": [torch.ones(count, dtype=torch.int) for count in counts],
            "num_microbatches": [1],
            "global_batch_sizes": [len(counts)],
        }
        own.compute_log_prob.return_value = {"log_probs": [torch.zeros(count) for count in counts]}
        try:
            actor.MegatronTrainRayActor.train_actor(own, 0, data)
        except TypeError as error:
            if "NoneType" not in str(error):
                raise
            return f"{estimator}: {error}"
        if made_up := {"values", "rollout_log_probs"} & set(data) - ({"values"} if path else set()):
            return f"{estimator}: the step is handed {sorted(made_up)}"
        wanted = [torch.full((count,), reward) for count, reward in zip(counts, rewards, strict=True)]
        found = data["advantages"]
        if not all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True)):
            return f"{estimator}: advantages are {found} and not {wanted}"
        # slime 0.2 calls no function of a user's here.
        if path and "own" in data and data.get("values") is not found:
            return "the values that a user's function left are gone"
    return ""


CONTRACT = contract(wrong, "slime.one-step-log-probs")
