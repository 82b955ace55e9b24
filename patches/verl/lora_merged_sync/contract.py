"""The rollout gets W + BA, the trainer keeps W, and whoever stops reading leaves the trainer as it was."""

import random
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches

_ENGINE, _UTILS = "verl.workers.engine.fsdp.transformer_impl", "verl.utils.fsdp_utils"
#: Hidden size, and what bfloat16 rounds by, in which verl 0.7 and 0.8 send.
HIDDEN, ROUNDING = 6, 2**-7
#: What a weight may be off by that is merged and unmerged in float32.
NEARLY = 2**-16


def wrong(seed: str) -> str:
    """Return what is wrong with what ranks send, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    for ranks in (1, 2, 3):
        if found := wrong_on_ranks(partial(_rank, seed), "peft", _ENGINE, ranks=ranks):
            return f"{ranks} ranks: {found}"
    return ""


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one rank."""
    import torch

    draw = random.Random(seed)
    torch.manual_seed(draw.randrange(2**31))
    for offload in (False, True):
        for trained in (True, False):
            rank, alpha = draw.randint(1, 3), draw.randint(1, 9)
            model = _model(rank, alpha, trained=trained)
            names = dict(model.named_parameters())
            whole = {name: one.full_tensor().detach().double() for name, one in names.items()}
            want = {}
            for name, one in whole.items():
                down, up = (name.replace("base_layer", f"lora_{part}.default") for part in "AB")
                merged = (
                    one + alpha / rank * whole[up] @ whole[down] if down in names and down != name else one
                )
                want[name.removeprefix("base_model.model.").replace(".base_layer", "")] = merged
            want = {name: one for name, one in want.items() if "lora_" not in name}
            case = f"{'an' if trained else 'no'} adapter, param_offload={offload}"
            for _update in range(2):
                weights, told = _sync(model, offload, merge=True)
                sent = dict(weights)  # whoever fills buckets reads them after the last has come
                if told is not None or sent.keys() != want.keys():
                    yield f"{case}: other weights are sent"
                for name in want:
                    size = float(want[name].abs().max())
                    if not float((sent[name].double() - want[name]).abs().max()) <= ROUNDING * size:
                        yield f"{case}: {name} is not W + BA"
            list(islice(_sync(model, offload, merge=True)[0], 2))  # a reader that stops
            _sync(model, offload, merge=True)  # and one that never begins
            for name, one in model.named_parameters():
                if not torch.equal(one.full_tensor().detach().double(), whole[name]):
                    yield f"{case}: the trainer has another {name}"
    yield from _adapter(model)
    yield from _way_back(draw)
    yield from _kinds(draw)


def _adapter(model: Any) -> Iterator[str]:
    """Yield what is wrong with an adapter that is sent beside the model."""
    import torch

    weights, told = _sync(model, False, merge=False)
    own = dict(model.named_parameters())
    sent = {name.replace(".weight", ".default.weight"): one for name, one in weights}
    if told is None or sent.keys() != {name for name in own if "lora_" in name}:
        yield "another adapter is sent"
    elif not all(torch.equal(one, own[name].full_tensor()) for name, one in sent.items()):
        yield "of the adapter other numbers are sent"


def _way_back(draw: random.Random) -> Iterator[str]:
    """Yield what is wrong where verl has no copy of the base weights, and subtracts what it has added."""
    import torch

    alpha = draw.randint(1, 9)
    model = _model(1, alpha, trained=True)
    for one in model.parameters():
        one.data.round_()  # so that sums and differences are exact
    names = dict(model.named_parameters())
    before = {name: one.full_tensor().detach().clone() for name, one in names.items()}
    with sys.modules[_UTILS].merged_lora_context(model):
        for name, one in before.items():
            if name.endswith("base_layer.weight"):
                down, up = (before[name.replace("base_layer", f"lora_{part}.default")] for part in "AB")
                if not torch.equal(names[name].full_tensor(), one + alpha * up @ down):
                    yield f"without a copy: {name} is not merged"
    for name, one in before.items():
        if not torch.equal(names[name].full_tensor(), one):
            yield f"without a copy: another {name} comes back"


def _kinds(draw: random.Random) -> Iterator[str]:
    """Yield what is wrong with layers of all kinds, wrapped or not, where peft merges whole tensors right."""
    from peft import LoraConfig

    parameters = {"target_parameters": ["experts.up"]}
    kinds: tuple[tuple[str, list[dict[str, Any]]], ...] = (
        ("LoRA", [parameters if "target_parameters" in vars(LoraConfig()) else {}]),
        ("DoRA", [{"use_dora": True}]),
        ("two adapters", [{}, {"use_dora": True}]),
    )
    for kind, adapters in kinds:
        whole = _many_kinds(draw, adapters)
        want = deepcopy(whole).double().merge_and_unload().state_dict()
        before = {name: one.detach().clone() for name, one in whole.named_parameters()}
        yield from (f"{kind}: {found}" for found in _as_peft(_sharded(whole), want, before))
    model = _sharded(_many_kinds(draw, [{}]))
    outside = model.base_model.model.picture
    with mock.patch.object(type(outside), "merge", side_effect=NotImplementedError("groups")):
        try:
            dict(_sync(model, False, merge=True)[0])
        except RuntimeError as error:
            if "picture cannot be merged (groups)" not in str(error):
                yield f"of a layer that peft cannot merge it says: {error}"
        else:
            yield "of a layer that peft cannot merge it says nothing"


def _as_peft(model: Any, want: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    """Yield what is sent that peft does not merge, and what is left of a merge."""
    import torch

    for _update in range(2):
        sent = dict(_sync(model, False, merge=True)[0])
        if sent.keys() != want.keys():
            yield "other weights are sent"
        for name, one in want.items():
            if not float((sent[name].double() - one).abs().max()) <= ROUNDING * float(one.abs().max()):
                yield f"{name} is not what peft merges"
    for name, one in model.named_parameters():
        if not torch.equal(one.full_tensor(), before[name]):
            yield f"the trainer has another {name}"
    with sys.modules[_UTILS].merged_lora_context(model):
        pass
    for name, one in model.named_parameters():
        off = (one.full_tensor().detach() - before[name]).abs().max()
        if not float(off) <= NEARLY * float(before[name].abs().max()):
            yield f"without a copy: another {name} comes back"


def _many_kinds(draw: random.Random, adapters: list[dict[str, Any]]) -> Any:
    """Return a model with trained adapters on layers of many kinds."""
    import torch
    from peft import LoraConfig, get_peft_model

    base = _base()
    base.picture, base.score = torch.nn.Conv3d(3, HIDDEN, 2), torch.nn.Linear(HIDDEN, 1)
    for layer in base.layers:
        layer.conv, layer.experts = torch.nn.Conv1d(HIDDEN, HIDDEN, 3), torch.nn.Module()
        layer.experts.up = torch.nn.Parameter(torch.randn(4, 5, HIDDEN))
    targets = ["q", "conv", "merger", "embed", "picture", "score"]
    configs = [
        LoraConfig(r=2, lora_alpha=draw.randint(1, 9), target_modules=targets, **one) for one in adapters
    ]
    model: Any = get_peft_model(base, configs[0])
    for number, config in enumerate(configs[1:]):
        model.add_adapter(f"{number}", config)
    model.base_model.set_adapter([*model.peft_config])
    for name, one in model.named_parameters():
        if "lora_" in name:
            one.data += torch.randn_like(one) / 4
    return model


def _sync(model: Any, offload: bool, *, merge: bool) -> Any:
    """Return what verl's engine hands to the rollout."""
    module, utils = sys.modules[_ENGINE], sys.modules[_UTILS]
    engine = object.__new__(module.FSDPEngine)
    vars(engine).update(
        module=model, model_config=SimpleNamespace(lora={"merge": merge}, hf_config=model.config),
        _is_offload_param=offload, _uses_fsdp2_cpu_offload_policy=False, _qat_enabled=False,
    )  # fmt: skip
    quiet = SimpleNamespace(empty_cache=lambda: None)

    def read() -> Iterator[Any]:
        with (
            mock.patch.object(module, "get_device_id", return_value="cpu"),
            mock.patch.object(utils, "get_device_id", return_value="cpu"),
            mock.patch.object(utils, "get_torch_device", return_value=quiet),
        ):
            weights, told = engine.get_per_tensor_param(base_sync_done=True)
            yield told
            yield from weights

    return (reader := read()), next(reader)


def _model(rank: int, alpha: int, *, trained: bool) -> Any:
    """Return a model with an adapter, of which `B` is 0 until it is trained, over the ranks."""
    from peft import LoraConfig, get_peft_model

    # Where no layer is wrapped that it is a part of, it lies in the root alone.
    adapter = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["q", "merger"])
    model: Any = get_peft_model(_base(), adapter)
    for name, one in model.named_parameters():
        if trained or "lora_B" not in name:
            one.data.normal_()
    return _sharded(model)


def _base() -> Any:
    """Return a model of two layers and what lies outside them."""
    import torch

    base: Any = torch.nn.Module()
    base.config = SimpleNamespace(model_type="toy", tie_word_embeddings=False, to_dict=dict)
    base.prepare_inputs_for_generation = None
    base.embed = torch.nn.Embedding(7, HIDDEN)
    base.merger = torch.nn.Linear(HIDDEN, HIDDEN)
    base.layers = torch.nn.ModuleList(torch.nn.Module() for _layer in range(2))
    for layer in base.layers:
        layer.q, layer.o = torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)
    return base


def _sharded(model: Any) -> Any:
    """Return a model with its layers wrapped, over the ranks."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model.base_model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


CONTRACT = Contract(check=with_patches(wrong, "verl.lora-merged-sync"), before=("verl.protocol",))
