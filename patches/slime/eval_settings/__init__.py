"""`slime.eval-settings`: what an evaluation's configuration says reaches its data sets and its sampling."""

from dataclasses import fields
from functools import wraps
from typing import Any

from overlay import log
from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_BUILD = "slime.utils.eval_config:build_eval_dataset_configs"
_RUN = "slime.rollout.sglang_rollout:eval_rollout_single_dataset"
#: Of a data set, what slime reads and never hands to the engine.
_LOST = ("stop", "stop_token_ids", "min_new_tokens")
EFFECT = effect(__name__, "data set", did="completed the settings of")


def make_build(original: Any, module: Any) -> Any:
    """Give each data set the defaults for which slime has no rule."""

    @wraps(original)
    def build_eval_dataset_configs(args: Any, raw_config: Any, defaults: Any) -> Any:
        rules = {**module.DATASET_RUNTIME_SPECS, **module.DATASET_SAMPLE_SPECS}
        known = {field.name for field in fields(module.EvalDatasetConfig)}
        more = {name: value for name, value in (defaults or {}).items() if name in known - rules.keys()}
        names = {name for rule in rules.values() for name in rule["default_keys"]}
        if unknown := sorted({*(defaults or {})} - known - names):
            log.warning(f"eval.defaults has what slime does not know: {', '.join(unknown)}")
        given = [dict(one or {}) for one in raw_config]
        EFFECT.calls += len(given)
        EFFECT.changed += sum(bool(more.keys() - one.keys()) for one in given)
        return original(args, [{**more, **one} for one in given], defaults)

    return build_eval_dataset_configs


def make_run(original: Any, module: Any) -> Any:
    """Hand a data set's stop words, and its fewest tokens, to the engine."""

    @wraps(original)
    async def eval_rollout_single_dataset(args: Any, rollout_id: Any, dataset_cfg: Any) -> Any:
        own = {name: getattr(dataset_cfg, name, None) for name in _LOST}
        if own["min_new_tokens"] is None:
            own["min_new_tokens"] = getattr(args, "eval_min_new_tokens", None)
        own = {name: value for name, value in own.items() if value is not None}
        EFFECT.calls += 1
        EFFECT.changed += bool(own)

        def generate_and_rm(*given: Any, sampling_params: Any, **named: Any) -> Any:
            return module.generate_and_rm(*given, sampling_params={**sampling_params, **own}, **named)

        run = rebound(original, module, generate_and_rm=generate_and_rm) if own else original
        return await run(args, rollout_id, dataset_cfg)

    return eval_rollout_single_dataset


PATCH = Patch(
    id="slime.eval-settings",
    summary="Every key of eval.defaults counts, and stop words of an evaluation reach the engine",
    why="In --eval-config, slime drops those eval.defaults for which it has no rule: rm_type since 0.2.1; "
    "stop, stop_token_ids and min_new_tokens since 0.2.2, the first whose data sets may have them. What a "
    "data set says of these three never reaches the engine, nor does --eval-min-new-tokens. So evaluations "
    "are graded by another reward, or go on past their stop words. With the patch a data set's own value "
    "counts, then eval.defaults, then the job's. A key of eval.defaults that slime doesn't know, as stop is "
    "to 0.2.1, gets a warning.",
    changes=("numbers",),
    met="--eval-config with eval.defaults, or, since 0.2.2, with stop, stop_token_ids or min_new_tokens of a "
    "data set; or --eval-min-new-tokens.",
    upstream=("THUDM/slime#2242",),
    evidence="slime's commit d3c0e79 (after 0.3.1) does the same, but for an unknown key: it stops the job.",
    targets=one_target(SLIME, variant("0.2.1", replaced(_BUILD, make_build), replaced(_RUN, make_run))),
)
