"""Let the slime that is first on the path compute advantages without any log-probabilities; print JSON.

That is what it does since 0.3.0 where a rollout is one step, as the loss then has them at hand, and where the
rollout brings none of its own. With some, the same is done with those of the rollout.
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import torch

from overlay.compat.megatron_on_cpu import megatron
from overlay.compat.slime_on_cpu import import_slime


def main() -> None:
    """Print what is raised without log-probabilities and with those of the rollout."""
    with megatron():
        (loss,) = import_slime("loss")
        from overlay.compat.slime_on_cpu.advantages import ARGUMENTS

        options = {**vars(ARGUMENTS), "normalize_advantages": False}
        found = []
        log_probs: dict[str, Any] = {"rollout_log_probs": [torch.zeros(3)]}
        for extra in ({}, log_probs):
            data: dict[str, Any] = {
                "rewards": [1.0],
                "response_lengths": [3],
                "total_lengths": [5],
                "loss_masks": [torch.ones(3)],
                **extra,
            }
            try:
                loss.compute_advantages_and_returns(Namespace(**options), data)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the test judges it
                found.append(f"{type(error).__name__}: {error}")
            else:
                found.append("")
    print(json.dumps({"without": found[0], "with": found[1]}))


main()
