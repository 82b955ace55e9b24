"""Two ranks are compared once wherever they come by with their mesh. One without overlay stops the other."""

import importlib
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches

_ENGINE, _WORKERS = "verl.workers.engine.fsdp.transformer_impl", "verl.workers.fsdp_workers"
_TRAINING, _SFT = "verl.workers.engine_workers", "verl.trainer.fsdp_sft_trainer"


def wrong(seed: str) -> str:
    """Return what is wrong with how ranks are compared, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    # From 0.7.1 on it is the worker around an engine that compares.
    engine = _ENGINE if _there(_SFT) else _TRAINING
    modules = [name for name in (engine, _WORKERS, _SFT) if _there(name)]
    return wrong_on_ranks(partial(_rank, seed, modules), *modules)


def _there(module: str) -> bool:
    return find_spec(module) is not None


def _rank(seed: str, modules: list[str]) -> Iterator[str]:
    """Yield what is wrong on one of two ranks."""
    import torch

    import overlay
    from overlay.errors import AgreementError

    agree = overlay.agree
    with mock.patch.object(overlay, "agree", side_effect=agree) as compared:
        for name in modules:
            compared.reset_mock()
            COMES_BY[name](importlib.import_module(name), compared)
            if compared.call_count != 1:
                yield f"{name}: compared {compared.call_count} times"
    # Last, for the ranks count their comparisons alike no longer.
    name = random.Random(seed).choice(modules)
    if torch.distributed.get_rank() == 1:
        overlay.disable()
        COMES_BY[name](importlib.import_module(name))
        return
    # As long as a job's ranks wait nobody has to here: the other never comes.
    with mock.patch.object(overlay, "agree", partial(agree, timeout=1.0)):
        try:
            COMES_BY[name](importlib.import_module(name))
        except AgreementError as error:
            if "rank 1 did not take part" not in str(error):
                yield f"{name}: another rank is named: {error}"
            return
    yield f"{name}: goes on without the other rank"


def _engine(module: Any, _compared: Any = None) -> None:
    """Let an engine on FSDP make its mesh."""
    engine: Any = object.__new__(module.FSDPEngine)
    engine.engine_config = SimpleNamespace(fsdp_size=-1, ulysses_sequence_parallel_size=1)
    with mock.patch("verl.workers.engine.fsdp.utils.get_device_name", return_value="cpu"):
        engine._init_device_mesh()


def _training(module: Any, compared: Any = None) -> None:
    """Let a worker make an engine of any kind."""
    engines = importlib.import_module("verl.workers.engine")

    def made(**_named: Any) -> Any:
        if compared is not None and compared.call_count:
            raise AssertionError("compared before there is an engine")
        return SimpleNamespace(get_data_parallel_rank=lambda: 0, is_mp_src_rank_with_outputs=lambda: True)

    model = SimpleNamespace(hf_config=None, use_remove_padding=True, use_fused_kernels=False)
    model.get = lambda name, other: getattr(model, name, other)
    config = SimpleNamespace(
        model_config=model, engine_config=SimpleNamespace(strategy="any"), optimizer_config=None,
        checkpoint_config=None, profiler_config=None, model_type="language_model",
    )  # fmt: skip
    with (
        mock.patch.object(engines.EngineRegistry, "new", made),
        mock.patch.object(module, "FlopsCounter"),
        mock.patch.object(module, "set_numa_affinity", create=True),
    ):
        module.TrainingWorker(config)


def _worker(module: Any, _compared: Any = None) -> None:
    """Let a legacy worker make its mesh."""
    actor = SimpleNamespace(fsdp_config=SimpleNamespace(fsdp_size=-1), get=lambda _name, other: other)
    # What comes after that needs more of a configuration.
    with mock.patch.object(module, "device_name", "cpu"), suppress(AttributeError):
        module.ActorRolloutRefWorker(SimpleNamespace(actor=actor), role="actor")


def _sft(module: Any, _compared: Any = None) -> None:
    """Let the trainer of SFT take its mesh, as above."""
    with suppress(AttributeError):
        module.FSDPSFTTrainer(
            config=SimpleNamespace(), device_mesh=None, ulysses_device_mesh=None, tokenizer=None,
            train_dataset=None, val_dataset=None,
        )  # fmt: skip


#: What makes ranks come by where they are compared, by its module.
COMES_BY = {_ENGINE: _engine, _TRAINING: _training, _WORKERS: _worker, _SFT: _sft}
CONTRACT = Contract(check=with_patches(wrong, "verl.agreement"), before=("verl.protocol",))
