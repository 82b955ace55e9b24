"""The teacher is asked for log-probabilities at the rollout's temperature."""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what a server in the teacher's place is asked for and should not be, empty if nothing."""
    from overlay.compat.slime_on_cpu import imported

    module = imported("slime.rollout.on_policy_distillation")
    draw = random.Random(seed)
    tokens = [draw.randrange(1000) for _ in range(7)]
    for temperature in (round(draw.uniform(0.1, 2), 3), 1.0):
        asked, told = asyncio.run(_ask(module, temperature, tokens))
        sampling = asked["sampling_params"]
        if told != {"meta_info": 1} or asked["input_ids"] != tokens or sampling["max_new_tokens"] != 0:
            raise RuntimeError(f"asked {asked}, told {told}")
        if sampling["temperature"] != temperature:
            return f"asked at temperature {sampling['temperature']}, and the student's is {temperature}"
    return ""


async def _ask(module: Any, temperature: float, tokens: list[int]) -> tuple[Any, Any]:
    """Return what a server is asked, and what slime makes of its answer."""
    from aiohttp import web

    asked: list[Any] = []

    async def answer(request: Any) -> Any:
        asked.append(await request.json())
        return web.json_response({"meta_info": 1})

    app = web.Application()
    app.router.add_post("/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        args = Namespace(rm_url=f"http://127.0.0.1:{port}/generate", rollout_temperature=temperature)
        sample = SimpleNamespace(tokens=tokens, multimodal_inputs=None)
        told = await module.reward_func(args, sample)
    finally:
        await runner.cleanup()
    return asked[0], told


CONTRACT = Contract(check=with_patches(wrong, "slime.teacher-temperature"), before=("aiohttp.web", "ray"))
