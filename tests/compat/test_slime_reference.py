"""The reference of a step of slime's: what it does not know it does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from slime_actor_on_cpu.arguments import Sizes
from slime_actor_on_cpu.reference import reference

KNOWN = {
    "seed": 1,
    "kl_coef": 0,
    "use_kl_loss": False,
    "kl_loss_type": "k2",
    "use_unbiased_kl": False,
    "use_tis": False,
    "use_opd": False,
    "use_opsm": False,
    "calculate_per_token_loss": False,
    "advantage_estimator": "grpo",
    "normalize_advantages": False,
    "use_rollout_logprobs": False,
    "rollout_temperature": 1.0,
    "entropy_coef": 0.0,
    "eps_clip": 0.2,
    "eps_clip_high": 0.2,
    "eps_clip_c": None,
}
DATA = {"tokens": [[1, 2, 3, 4]], "response_lengths": [2], "loss_masks": [[1, 1]], "rewards": [0.5]}


def asked(**settings: Any) -> float:
    return reference(SimpleNamespace(**KNOWN | settings), Sizes(), "actor", DATA).loss


@pytest.mark.parametrize(
    "settings",
    [
        {"kl_coef": 0.1},
        {"use_kl_loss": True, "kl_loss_type": "k1"},
        {"use_kl_loss": True, "use_unbiased_kl": True},
        {"use_tis": True},
        {"use_opd": True},
        {"use_opsm": True},
        {"calculate_per_token_loss": True},
        {"advantage_estimator": "gspo"},
    ],
    ids=lambda settings: list(settings)[-1],
)
def test_there_is_none_for_other_settings(settings: dict[str, Any]) -> None:
    assert asked() == pytest.approx(-0.5)  # the old log-probabilities are its own
    with pytest.raises(NotImplementedError, match="no reference for these settings"):
        asked(**settings)
