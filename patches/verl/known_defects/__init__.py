"""`verl.known-defects`: the process that logs for a job says which known defects affect this very job."""

from collections.abc import Iterator
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "job", did="looked up the settings of", always=True)


@around
def look_up(original: Any, self: Any, *given: Any, **named: Any) -> None:
    """Look up the configuration, which every trainer of verl hands to its logger once it is resolved."""
    original(self, *given, **named)
    from overlay.compat import dialects
    from overlay.runtime.met import meet
    from overlay.runtime.process import here

    config = named.get("config", given[-1] if given else None)
    if isinstance(config, dict):
        meet(here(), dialects.VERL, trained(config))
        EFFECT.changed += 1


def flat(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration by their paths: `actor_rollout_ref.actor.strategy`."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def trained(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each model that is trained: the actor, and the critic if there is one."""
    settings = dict(flat(config))
    if not any(key.startswith("actor_rollout_ref.") for key in settings):  # SFT: one model
        # Its settings of Megatron do not name the engine.
        engine = {"strategy": "megatron"} if "engine.tensor_model_parallel_size" in settings else {}
        yield {**engine, **settings, "use_dynamic_bsz": settings.get("data.use_dynamic_bsz")}
        return
    others = ("actor_rollout_ref.actor.", "actor_rollout_ref.ref.", "critic.", "reward_model.", "reward.")
    shared = {key: value for key, value in settings.items() if not key.startswith(others)}
    enabled = settings.get("critic.enable")
    shared["critic.enable"] = enabled
    if enabled is None:
        enabled = settings.get("algorithm.adv_estimator") == "gae"
    parts = ["actor_rollout_ref.actor.", "critic."] if enabled else ["actor_rollout_ref.actor."]
    for part in parts:
        yield {**shared, **{key: value for key, value in settings.items() if key.startswith(part)}}


PATCH = Patch(
    id="verl.known-defects",
    summary="Log at the start which known defects affect this job, by its resolved configuration",
    why="An audit before the job can only read its scripts. Every trainer of verl hands the configuration to "
    "its logger once Hydra has resolved it. There the process that logs looks up which known defects affect "
    "the job. It logs in a line how many are patched here, and what to do about the others.",
    evidence="It changes nothing that computes: it adds a line to the log, and to the ledger.",
    changes=("safety",),
    met="Any job of verl's trainers. It changes no number.",
    upstream=(),
    companion=True,
    without="the log does not say which known defects affect this job",
    targets=one_target(VERL, variant("0.6", replaced("verl.utils.tracking:Tracking.__init__", look_up))),
)
