"""What asks the teacher for log-probabilities at the temperature of the student's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any


def make_reward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the request to the teacher: slime's own, serialised with the rollout's temperature."""
    import json

    from overlay.patches._rebound import rebound
    from overlay.patches.slime.teacher_temperature.effect import EFFECT

    async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
        def serialised(payload: Any) -> str:
            EFFECT.calls += 1
            EFFECT.changed += payload["sampling_params"].get("temperature") != args.rollout_temperature
            sampling = {**payload["sampling_params"], "temperature": args.rollout_temperature}
            return json.dumps({**payload, "sampling_params": sampling})

        session = partial(module.aiohttp.ClientSession, json_serialize=serialised)
        own = rebound(original, module, aiohttp=SimpleNamespace(ClientSession=session))
        return await own(args, sample, **kwargs)

    return reward_func
