"""A rollout of one step without log-probabilities has the advantages that it has with them."""

import random
from typing import Any
from unittest.mock import MagicMock

from overlay.compat.contracts.slime import contract, on_megatron


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
    for estimator in ("grpo", "reinforce_plus_plus_baseline"):
        args = MagicMock(**{**vars(ARGUMENTS), "normalize_advantages": False})
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
            return f"{estimator}: {error}"
        if made_up := {"values", "rollout_log_probs"} & set(data):
            return f"{estimator}: the step is handed {sorted(made_up)}"
        wanted = [torch.full((count,), reward) for count, reward in zip(counts, rewards, strict=True)]
        found = data["advantages"]
        if not all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True)):
            return f"{estimator}: advantages are {found} and not {wanted}"
    return ""


CONTRACT = contract(wrong, "slime.one-step-log-probs")
