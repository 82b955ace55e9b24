"""What the patches of slime count, against what is counted by hand."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from effect_cases import NO_MODULE, counts_of, fix

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random


def test_group_baseline(draw: random.Random) -> None:
    """Two prompts of two, in another order than slime takes them for."""
    counts = counts_of("slime.group-baseline")
    from overlay.patches.slime.group_baseline.rewards import by_prompt

    args = SimpleNamespace(
        advantage_estimator="reinforce_plus_plus_baseline",
        rewards_normalization=True,
        grpo_std_normalization=False,
        n_samples_per_prompt=2,
        rollout_batch_size=2,
    )
    rewards = [draw.uniform(0, 1) + 2 * index for index in range(4)]

    def samples(groups: list[int]) -> list[Any]:
        pairs = zip(rewards, groups, strict=True)
        return [
            SimpleNamespace(get_reward_value=lambda _, value=value: value, group_index=group, rollout_id=None)
            for value, group in pairs
        ]

    by_prompt(args, samples([0, 0, 1, 1]))
    assert counts.read() == {"calls": 1, "changed": 0, "rewards": 0}
    by_prompt(args, samples([0, 1, 0, 1]))
    a, b, c, d = rewards
    right = [a - (a + c) / 2, b - (b + d) / 2, c - (a + c) / 2, d - (b + d) / 2]
    theirs = [a - (a + b) / 2, b - (a + b) / 2, c - (c + d) / 2, d - (c + d) / 2]
    away = [abs(one - other) for one, other in zip(right, theirs, strict=True)]
    assert (counts.calls, counts.changed) == (2, 1)
    assert counts.rewards == sum(far > 1e-4 for far in away)
    assert counts.off == pytest.approx(max(away), abs=1e-5)


def test_partial_rollout_budget(draw: random.Random) -> None:
    counts = counts_of("slime.partial-rollout-budget")
    lengths = [0, draw.randint(1, 50), draw.randint(1, 50)]
    for length in lengths:
        sample = SimpleNamespace(response_length=length)
        assert fix("slime.partial-rollout-budget").left(sample, {"max_new_tokens": 40}) == {
            "max_new_tokens": max(40 - length, 0)
        }
    assert counts.read() == {"calls": 3, "changed": 2, "over": sum(lengths)}


def test_tool_turn_mask() -> None:
    counts = counts_of("slime.tool-turn-mask")
    tool, user = {"role": "tool"}, {"role": "user"}
    fix("slime.tool-turn-mask").turns([user, tool, tool, user, tool, user, tool, tool, tool])
    fix("slime.tool-turn-mask").turns([user, tool])
    assert counts.read() == {"calls": 2, "changed": 1}


def test_value_temperature() -> None:
    counts = counts_of("slime.value-temperature")
    get_responses = fix("slime.value-temperature").make_responses(lambda logits, args: [args], NO_MODULE)
    args = SimpleNamespace(rollout_temperature=0.5)
    assert [one.rollout_temperature for one in get_responses(torch.zeros(1, 4, 1), args=args)] == [1.0]
    assert list(get_responses(torch.zeros(1, 4, 8), args=args)) == [args]
    assert counts.read() == {"changed": 1}


def test_bridge_flags() -> None:
    counts = counts_of("slime.bridge-flags")

    class Bridge:
        recompute_granularity = None
        context_parallel_size = 2

        def provide(self) -> None:
            """Make nothing."""

    args = SimpleNamespace(recompute_granularity="full", context_parallel_size=2, recompute_method=None)
    fix("slime.bridge-flags").hand_over(args, Bridge().provide)
    assert counts.read() == {"calls": 2, "changed": 1}


def test_checkpoint_step() -> None:
    counts = counts_of("slime.checkpoint-step")

    def load(self: Any, _tag: str, path: str) -> None:
        self.args.ckpt_step = int(path)

    actor = SimpleNamespace(args=SimpleNamespace(ckpt_step=7))
    for path in ("7", "9"):
        fix("slime.checkpoint-step").load_other(load, NO_MODULE)(actor, "ref", path)
    assert counts.read() == {"calls": 2, "changed": 1}


def test_allgather_cp_models() -> None:
    counts = counts_of("slime.allgather-cp-models")
    validate = fix("slime.allgather-cp-models").validate(lambda *_: None, NO_MODULE)
    args = SimpleNamespace(allgather_cp=True, context_parallel_size=2)
    with pytest.raises(ValueError, match="allgather-cp"):
        validate(args, SimpleNamespace(architectures=["Qwen3ForCausalLM"]))
    validate(args, SimpleNamespace(architectures=["DeepseekV32ForCausalLM"]))
    assert counts.read() == {"changed": 1}


def test_eps_clip_c() -> None:
    counts = counts_of("slime.eps-clip-c")

    def policy_loss_function(args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
        return None

    loss = fix("slime.eps-clip-c").make_policy_loss(
        policy_loss_function, SimpleNamespace(compute_policy_loss=print)
    )
    loss(SimpleNamespace(eps_clip_c=None), None, None, None)
    loss(SimpleNamespace(eps_clip_c=3.0), None, None, None)
    assert counts.read() == {"changed": 1}


def test_group_timeouts(draw: random.Random) -> None:
    counts = counts_of("slime.group-timeouts")

    number = draw.randint(1, 5)
    made_with: dict[str, Any] = {"overlay_made_with": ((), {})}
    groups = [SimpleNamespace(group=None, group_info=dict(made_with)) for _ in range(number)]
    groups += [SimpleNamespace(group="there", group_info=dict(made_with))]
    module = SimpleNamespace(
        ReloadableProcessGroup=SimpleNamespace(GROUPS={os.getpid(): groups}),
        old_new_group_dict={os.getpid(): lambda: "anew"},
    )
    fix("slime.group-timeouts").make_reload(lambda: None, module)()
    assert counts.read() == {"changed": number}
