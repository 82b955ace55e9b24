"""`verl.multi-turn-returns`: REINFORCE++ starts anew at each token that is not the policy's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from overlay.patches.verl.multi_turn_returns import PATCH
from overlay.runtime.engine import Engine


def advantages() -> list[list[float]]:
    """Return what verl's trainer makes of two rollouts of two turns, of which the first succeeds."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    rewards = torch.zeros(2, 6)
    rewards[0, -1] = 1
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]] * 2)
    data = DataProto.from_dict({"token_level_rewards": rewards, "response_mask": mask})
    config = SimpleNamespace(gamma=1.0)
    data = compute_advantage(data, AdvantageEstimator.REINFORCE_PLUS_PLUS, config=config)
    found: list[list[float]] = data.batch["advantages"].tolist()
    return found


@pytest.mark.filterwarnings("ignore")  # what verl imports warns of this and that
def test_in_verls_trainer_both_turns_of_a_success_are_credited() -> None:
    engine = Engine()
    engine.enable([PATCH.id], strict=True)
    try:
        success, failure = advantages()
    finally:
        engine.disable()
    credited = 0.5 / (2 / 7) ** 0.5  # of the returns of eight tokens four are 1, and the others 0
    assert success == pytest.approx([credited, credited, 0, 0, credited, credited], abs=1e-5)
    assert failure == pytest.approx([-one for one in success], abs=1e-5)
