"""However a batch is cut, the gradient is that of its mean."""

import random
from functools import partial
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with the gradient of verl's own engine, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch
    from verl.trainer.distillation.losses import distillation_ppo_loss
    from verl.workers.config import ActorConfig, DistillationConfig, DistillationLossConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from overlay.compat import cpu_fsdp_engine as cpu

    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    for mode in cpu.MODES:
        for as_reward in (False, True):
            model = cpu.Table(cpu.VOCABULARY, generator)
            actor = ActorConfig(
                strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=mode
            )
            settings = DistillationLossConfig(
                loss_mode="mse", use_policy_gradient=as_reward, use_task_rewards=False, loss_max_clamp=None
            )
            loss = partial(distillation_ppo_loss, actor, DistillationConfig(distillation_loss=settings))
            # All share one configuration, as in a job: what one batch leaves there the next one finds.
            for ranks, cut in ((1, 4), (1, 8), (2, 1), (1, 1), (1, 2)):
                # In each sample some token counts: without one in a micro-batch verl raises.
                batch = _with_teacher(cpu.draw_batch(draw, 8, silent=False), model.rows, generator)
                want = _reference(model.rows, batch, mode, as_reward=as_reward)
                cpu.step(FSDPEngineWithLMHead, model, batch, loss, ranks=ranks, micro_batch_size_per_gpu=cut)
                if off := cpu.gradient_off(model.rows.grad, want):
                    how = f"{ranks} ranks, {cut} samples in a micro-batch"
                    return f"{mode}, {how}, as a reward: {as_reward}: {off}"
    return ""


def _log_probs(rows: Any, batch: Any) -> list[Any]:
    """Return the log-probabilities of the responses, one [response] for each sample."""
    import torch

    from overlay.compat.cpu_fsdp_engine import before_responses

    return [
        torch.log_softmax(rows[ids], -1).gather(1, answer[: len(ids), None])[:, 0]
        for ids, answer in zip(before_responses(batch), batch["responses"], strict=True)
    ]


def _with_teacher(batch: Any, rows: Any, generator: Any) -> Any:
    """Add a teacher's log-probabilities and what the policy loss reads. The policy is still the old one."""
    import torch

    from overlay.compat.cpu_fsdp_engine import nested

    drawn = partial(torch.randn, generator=generator, dtype=torch.float64)
    size = batch["responses"].shape
    batch["teacher_logprobs"] = nested([drawn(len(row), 1) - 2 for row in batch["input_ids"].unbind()])
    batch["old_log_probs"] = torch.zeros(size, dtype=torch.float64)
    for row, values in enumerate(_log_probs(rows.detach(), batch)):
        batch["old_log_probs"][row, : len(values)] = values
    batch["advantages"] = drawn(size)
    return batch


def _reference(rows: Any, batch: Any, mode: str, *, as_reward: bool) -> Any:
    """Return the gradient of half the squared distance to the teacher, or of that as a reward to avoid."""
    from overlay.compat.cpu_fsdp_engine import mean_of_batch

    table = rows.detach().clone().requires_grad_(True)
    sums = []
    teachers = batch["teacher_logprobs"].unbind()
    for row, student in enumerate(_log_probs(table, batch)):
        counts = batch["response_mask"][row][: len(student)]
        distance = 0.5 * (student - teachers[row][-1 - len(student) : -1, 0]) ** 2
        # At the old policy the gradient of a token is that of its log-probability times its advantage.
        terms = distance.detach() * student if as_reward else distance
        sums.append((terms * counts).sum())
    mean_of_batch(sums, batch, mode).backward()
    return table.grad


CONTRACT = Contract(check=with_patches(wrong, "verl.distillation-loss-scale"), before=("verl.protocol",))
