"""`slime.other-models`: loading the reference, a teacher or the old actor leaves nothing of them behind."""

from collections.abc import Callable
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

_ACTOR = "slime.backends.megatron_utils.actor:MegatronTrainRayActor"
_LOAD = f"{_ACTOR}.load_other_checkpoint"
_COPY, _SWITCH = f"{_ACTOR}.update_gpu_params_dict", f"{_ACTOR}._switch_model"
EFFECT = effect(__name__, "load", did="put the actor's weights back after", always=True)


def make_load(restore: Callable[[Any], object]) -> Any:
    """Return a factory; `restore` copies the actor's weights into the model."""

    @around
    def load_other_checkpoint(original: Any, self: Any, model_tag: str, path: str) -> None:
        """Load a model into the parameters of the actor, and with its arguments; then put both back."""
        step = self.args.ckpt_step
        try:
            original(self, model_tag, path)
        finally:
            self.args.ckpt_step = step
        if model_tag != "actor":  # which slime's server of log-probabilities loads so
            EFFECT.changed += 1
            restore(self)

    return load_other_checkpoint


PATCH = Patch(
    id="slime.other-models",
    summary="The first weights that go to the engines are the actor's, whatever else was loaded",
    why="slime loads the reference, a teacher and the old actor into the actor's own parameters, and puts "
    "the actor back only where training is offloaded. Updates over NCCL or the disk send what is there. So "
    "after a resume the first rollout comes from the model that was loaded last, with train_async.py the "
    "first two. From 0.2.3 on, a model may also be loaded from the step that was named for another one. With "
    "the patch the actor and --ckpt-step are put back after each load.",
    changes=("numbers", "crashes"),
    met="A resume with a reference, a teacher on Megatron or --keep-old-actor, and training that is not "
    "offloaded; or --ref-ckpt-step or --opd-teacher-ckpt-step without --ckpt-step, and another model loaded "
    "after it.",
    upstream=("THUDM/slime#2224", "THUDM/slime#1695", "THUDM/slime#2243"),
    evidence="slime puts the actor back in the same way where training is offloaded, and its commit 68a7347 "
    "(after 0.3.1) puts ckpt_step back.",
    targets=one_target(
        SLIME,
        variant(
            "0.1",
            replaced(_LOAD, make_load(lambda actor: actor.update_gpu_params_dict(actor.weights["actor"]))),
            _COPY,
        ),
        variant(
            "0.2",
            replaced(_LOAD, make_load(lambda actor: actor.weights_backuper.restore("actor"))),
            *(Absent(site=_COPY), Absent(site=_SWITCH)),
        ),
        variant(
            "0.2.1",
            replaced(_LOAD, make_load(lambda actor: actor._switch_model("actor"))),  # noqa: SLF001 -- slime's own
            _SWITCH,
        ),
    ),
)
