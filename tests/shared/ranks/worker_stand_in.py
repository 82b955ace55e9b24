"""verl's workers on CPU ranks: `ActorRolloutRefWorker`, `TrainingWorker` and the engines that they make.

The workers, their configuration, the engines' construction and their order are verl's own. Stood in for is
what there is none of here: a checkpoint, its tokenizer, and the bridge that reads it (the tiny model of
`cpu_engine`), the checkpoint manager, the rollout's inference engine, and the registration of Megatron's
engines for the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import hydra
import torch
from omegaconf import OmegaConf
from verl import trainer
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.config import model as model_config
from verl.workers.engine import EngineRegistry
from verl.workers.engine.megatron import transformer_impl

from overlay.compat import cpu_engine, verl_imports
from overlay.compat.cuda_on_cpu import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

verl_imports.stand_in_for("fastapi", "uvicorn")

from verl.workers import engine_workers  # noqa: E402

#: What the ranks of a model share in each of verl's engine configurations.
_CONFIG = Path(trainer.__file__).parent / "config"


@contextlib.contextmanager
def workers(seed: int) -> Iterator[None]:
    """Let verl's workers be made on the CPU, with random weights that come from `seed`."""
    fields = {"AutoBridge": _Bridges(seed), "make_value_model": _make_value_model, "freeze_moe_router": None}
    bridge = ModuleType("verl.models.mcore.mbridge")
    vars(bridge).update(fields)
    with contextlib.ExitStack() as undo:
        before = sys.modules.get(bridge.__name__)
        sys.modules[bridge.__name__] = bridge
        undo.callback(_put_back, bridge.__name__, before)
        for kind in ("language_model", "value_model"):
            known = EngineRegistry._engines[kind]["megatron"]
            known["cpu"] = known["cuda"]
            undo.callback(known.pop, "cpu")
        undo.enter_context(replaced(model_config, "hf_tokenizer", _tokenizer))
        undo.enter_context(replaced(model_config, "hf_processor", _nothing))
        undo.enter_context(replaced(transformer_impl, "MegatronCheckpointManager", _Checkpoints))
        undo.enter_context(replaced(engine_workers, "get_rollout_class", lambda *_which: _Rollout))
        undo.enter_context(replaced(engine_workers.CheckpointEngineRegistry, "new", _nothing))
        undo.enter_context(replaced(engine_workers, "aggressive_empty_cache", _nothing))
        yield


@functools.cache
def composed() -> Any:
    """Return what verl's trainer composes. It takes a second, so once for all ranks, which are forked."""
    with hydra.initialize_config_dir(str(_CONFIG), version_base=None):
        return hydra.compose("ppo_megatron_trainer")


def configuration(folder: Path, **settings: Any) -> Any:
    """Return what verl's trainer composes for a policy, its reference and its critic.

    Args:
        folder: Where the model's configuration is written.
        settings: By path, with two underscores for a dot: `critic__megatron__dtype`.

    """
    model = {"architectures": ["TinyForCausalLM"], "model_type": "llama", "vocab_size": cpu_engine.VOCABULARY}
    model |= {"hidden_size": cpu_engine.HIDDEN, "num_attention_heads": cpu_engine.HEADS}
    model |= {"num_hidden_layers": cpu_engine.LAYERS, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
    config = copy.deepcopy(composed())
    OmegaConf.set_struct(config, False)
    OmegaConf.update(config, "actor_rollout_ref.rollout.name", "vllm")
    for role in ("actor_rollout_ref.actor", "critic"):
        # The tiny model is float32's, and what shards the optimizer is nothing to the groups. The number of
        # steps is what the trainer sets.
        OmegaConf.update(config, f"{role}.optim.total_training_steps", 1)
        OmegaConf.update(config, f"{role}.megatron.use_distributed_optimizer", value=False)
        OmegaConf.update(config, f"{role}.optim.override_optimizer_config", {"bf16": False}, force_add=True)
    for role in ("actor_rollout_ref", "critic"):
        OmegaConf.update(config, f"{role}.model.path", str(folder))
    for name, value in settings.items():
        OmegaConf.update(config, name.replace("__", "."), value)
    return config


def policy(config: Any) -> Any:
    """Return verl's worker of actor, rollout and reference, with its models."""
    worker = engine_workers.ActorRolloutRefWorker(config.actor_rollout_ref, role="actor_rollout_ref")
    worker.init_model()
    return worker


def critic(config: Any) -> Any:
    """Return verl's worker of the critic, made as its trainer makes it, without its model."""
    settings = omega_conf_to_dataclass(config.critic)
    # As the trainer does, too.
    settings.engine.use_dynamic_bsz = True
    settings.engine.infer_max_token_len_per_gpu = settings.ppo_max_token_len_per_gpu
    settings.engine.max_token_len_per_gpu = settings.ppo_max_token_len_per_gpu
    return engine_workers.TrainingWorker(
        config=TrainingWorkerConfig(
            model_type="value_model",
            model_config=settings.model,
            engine_config=settings.engine,
            optimizer_config=settings.optim,
            checkpoint_config=settings.checkpoint,
        )
    )


class _Bridges:
    """Stands in for mbridge's `AutoBridge`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def from_config(self, _config: Any, dtype: Any) -> _Bridge:
        del dtype
        return _Bridge(self.seed)


class _Bridge:
    """Stands in for what builds a model and reads its weights: the tiny model, in float32."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.config: Any = SimpleNamespace()

    def set_extra_args(self, **extra: Any) -> None:
        dynamic = "max_seqlen_per_dp_cp_rank" in extra
        engine = cpu_engine.build_engine(cap=1 if dynamic else None, dynamic=dynamic, seed=self.seed)
        self.module = engine.module
        self.config = engine.tf_config

    def get_model(
        self, *, post_model_creation_callbacks: Any, wrap_with_ddp: bool, **_more: Any
    ) -> list[Any]:
        self.config.bf16 = False
        for chunk in self.module:
            for callback in post_model_creation_callbacks:
                callback(chunk.module)
        return self.module if wrap_with_ddp else [chunk.module for chunk in self.module]

    def load_weights(self, *_given: Any) -> None:
        pass


class _ValueHead(torch.nn.Module):
    """One value for each token, instead of one for each word of the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(cpu_engine.HIDDEN, 1, bias=False)

    def forward(self, hidden: Any, *_given: Any, **_more: Any) -> Any:
        return self.linear(hidden), None


def _make_value_model(model: Any, **_more: Any) -> None:
    torch.manual_seed(1)
    model.output_layer = _ValueHead()


class _Checkpoints:
    def __init__(self, **_given: Any) -> None:
        pass


class _Rollout:
    def __init__(self, **_given: Any) -> None:
        pass


def _tokenizer(*_given: Any, **_more: Any) -> Any:
    return SimpleNamespace(pad_token_id=0, bos_token_id=1, eos_token_id=2, chat_template=None)


def _nothing(*_given: Any, **_more: Any) -> None:
    return None


def _put_back(name: str, before: Any) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before
