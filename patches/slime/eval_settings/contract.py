"""A data set has its own value of each setting, else the default's, else the job's; and samples with it."""

import asyncio
import random
from argparse import Namespace
from dataclasses import fields
from typing import Any
from unittest.mock import MagicMock

from overlay.compat.slime_on_cpu import imported
from overlay.patch import Contract
from overlay.testing import with_patches

#: Values of settings, drawn by their names, and what the job says of them.
_OF_JOB = {"stop": "rollout_stop", "stop_token_ids": "rollout_stop_token_ids"}
_OF_JOB |= {"min_new_tokens": "eval_min_new_tokens", "temperature": "rollout_temperature"}


def wrong(seed: str) -> str:
    """Return which setting of an evaluation is another's."""
    config, rollout = imported("slime.utils.eval_config"), imported("slime.rollout.sglang_rollout")
    draw = random.Random(seed)
    known = {field.name for field in fields(config.EvalDatasetConfig)}
    drawn = {
        "rm_type": lambda: draw.choice(["math", "dapo"]),
        "custom_generate_function_path": lambda: f"module.function{draw.randrange(99)}",
        "stop": lambda: [f"</{draw.randrange(99)}>"],
        "stop_token_ids": lambda: [draw.randrange(99)],
        "min_new_tokens": lambda: draw.randrange(1, 99),
        "temperature": draw.random,
    }
    drawn = {name: value for name, value in drawn.items() if name in known}
    for _ in range(30):
        defaults, entry, job = (
            {name: value() for name, value in drawn.items() if draw.random() < share}
            for share in (0.5, 0.3, 0.5)
        )
        args = _arguments({_OF_JOB[name]: value for name, value in job.items() if name in _OF_JOB})
        (found,) = config.build_eval_dataset_configs(args, [{"name": "a", "path": "b", **entry}], defaults)
        params = _sampling(rollout, args, found)
        for name in drawn:
            wanted = {**defaults, **entry}.get(name)
            asked = params.get(name, "nothing") if name in _OF_JOB else getattr(found, name)
            if name in _OF_JOB and wanted is None:
                wanted = job.get(name, "nothing" if name == "min_new_tokens" else None)
            if asked != wanted:
                return f"{name} is {asked}, not {wanted}, with {entry} after {defaults} after {job}"
    # Nothing of one data set is another's, and no default is required.
    both = [{"name": "a", "path": "b", "rm_type": "math"}, {"name": "c", "path": "d"}]
    for defaults in (None, {}):  # type: ignore[assignment]
        found = config.build_eval_dataset_configs(_arguments({}), both, defaults)
        if [one.rm_type for one in found] != ["math", None]:
            return f"the rewards of {both} are {[one.rm_type for one in found]}"
    return ""


def _arguments(given: dict[str, Any]) -> Any:
    """Return arguments of a job: what is not set is off."""

    class Arguments(Namespace):
        def __getattr__(self, _name: str) -> Any:
            return None

    return Arguments(reward_key=None, n_samples_per_prompt=1, rollout_seed=0, hf_checkpoint="", **given)


def _sampling(rollout: Any, args: Any, dataset: Any) -> Any:
    """Return the parameters with which slime samples a prompt of a data set."""
    from slime.utils.types import Sample

    asked: list[Any] = []

    async def generate_and_rm(_args: Any, sample: Any, sampling_params: Any, **_more: Any) -> Any:
        asked.append(sampling_params)
        sample.response, sample.reward = "", 0.0
        return sample

    rollout.generate_and_rm = generate_and_rm
    rollout.Dataset = lambda *_, **__: MagicMock(samples=[Sample(prompt="1 + 1 =")])
    rollout.EVAL_PROMPT_DATASET.clear()
    for name in ("load_tokenizer", "load_processor", "AutoTokenizer"):
        if hasattr(rollout, name):
            setattr(rollout, name, MagicMock())
    asyncio.run(rollout.eval_rollout_single_dataset(args, 0, dataset))
    return asked[0]


CONTRACT = Contract(check=with_patches(wrong, "slime.eval-settings"), before=("torch", "ray", "transformers"))
