"""`verl.lora-merged-sync`: FSDP2 sends what LoRA has merged, and takes it out again when all is sent."""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import wraps
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_ENGINE, _UTILS = "verl.workers.engine.fsdp.transformer_impl", "verl.utils.fsdp_utils"
_STREAM = f"{_ENGINE}:FSDPEngine._merged_lora_per_tensor_param"
EFFECT = effect(__name__, "weight update", did="sent merged weights in")


def make_get_per_tensor_param(original: Any, module: Any) -> Any:
    """Return the weights as the original does, and unmerge only when the last of them has been read."""

    @wraps(original)
    def get_per_tensor_param(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = self.module
        merges = self.model_config.lora.get("merge", False) and hasattr(model, "peft_config")
        # The state of FSDP1 is a copy.
        if not merges or module.fsdp_version(model) == 1:
            return original(self, *args, **kwargs)

        def merged() -> Iterator[tuple[str, Any]]:
            with ExitStack() as until_sent:

                def merged_lora_context(*given: Any, **named: Any) -> Any:
                    until_sent.enter_context(module.merged_lora_context(*given, **named))
                    return nullcontext()

                sync = rebound(original, module, merged_lora_context=merged_lora_context)
                weights, _ = sync(self, *args, **kwargs)
                EFFECT.calls += 1
                EFFECT.changed += _merged(model) > 0
                for name, weight in weights:
                    # On one rank it may be the parameter itself, and the last bucket is sent late.
                    yield name, weight.clone()

        return merged(), None

    return get_per_tensor_param


def make_fsdp_merge_unmerge(original: Any, module: Any) -> Any:
    """Merge or unmerge what the original does, and what it leaves out or DTensors get wrong."""

    @wraps(original)
    def fsdp_merge_unmerge(model: Any, do_merge: bool) -> None:
        _merge_or_unmerge(original, module, model, do_merge)

    return fsdp_merge_unmerge


def make_counted_merge(original: Any, module: Any) -> Any:
    """Do the same, and count the merges that go otherwise without the patch, in verl 0.9."""

    @wraps(original)
    def fsdp_merge_unmerge(model: Any, do_merge: bool) -> None:
        layers = _merge_or_unmerge(original, module, model, do_merge)
        EFFECT.calls += do_merge
        EFFECT.changed += do_merge and layers > 0

    return fsdp_merge_unmerge


def _merge_or_unmerge(original: Any, module: Any, model: Any, do_merge: bool) -> int:
    """Merge or unmerge the adapters of all layers, and return how many merges the original would not do."""
    before = _merged(model)
    # Whatever is merged already is passed over.
    for name, layer in model.named_modules():
        if getattr(layer, "merged", do_merge) is not do_merge and not _shards_will_do(layer):
            _on_whole_tensors(layer, name, do_merge)
    whole = _merged(model)
    original(model, do_merge)
    layers = _merged(model)
    # The layers that lie in no wrapped layer. Shards are merged as DTensors, the root's too.
    module._merge_or_unmerge_lora_(model, merge=do_merge)
    return whole - before + _merged(model) - layers


def _shards_will_do(layer: Any) -> bool:
    """Tell whether peft can add an adapter to the shards of a weight: to those of most layers it can."""
    from peft.tuners import lora
    from torch.distributed.tensor import DTensor

    if not isinstance(layer, lora.LoraLayer):
        return True
    own: Any = layer
    if not any(isinstance(one, DTensor) for one in own.parameters()):
        return True
    # DoRA and its like assign `weight.data`, which changes nothing in a DTensor.
    variants = getattr(own, "lora_variant", own.use_dora)
    if type(own) not in (lora.Linear, lora.Embedding) or any(variants.values()):
        return False
    weight = own.get_base_layer().weight
    # Where a rank has no row of it, torch adds nothing to it in place.
    return not isinstance(weight, DTensor) or len(weight) >= weight.device_mesh.size()


def _on_whole_tensors(layer: Any, name: str, do_merge: bool) -> None:
    """Let peft merge or unmerge one layer with its parameters gathered, and keep this rank's shards."""
    from torch.distributed.tensor import DTensor
    from torch.nn import Parameter

    shards: list[tuple[Any, str, Any]] = [
        (one, own, shard)
        for one in layer.modules()
        for own, shard in one.named_parameters(recurse=False)
        if isinstance(shard, DTensor)
    ]
    try:
        for one, own, shard in shards:
            # With a CPUOffloadPolicy it lies on the CPU.
            whole = shard.detach().to(shard.device_mesh.device_type).full_tensor()
            setattr(one, own, Parameter(whole, requires_grad=False))
        layer.merge() if do_merge else layer.unmerge()
        for one, own, shard in shards:
            whole = DTensor.from_local(getattr(one, own).detach(), shard.device_mesh, run_check=False)
            shard.data.copy_(whole.redistribute(placements=shard.placements).to(shard.device))
    except Exception as error:
        raise RuntimeError(
            f"overlay: verl.lora-merged-sync: the adapter of {name} cannot be merged ({error}): leave this "
            "module out of the adapter (exclude_modules)"
        ) from error
    finally:
        for one, own, shard in shards:
            setattr(one, own, shard)


def _merged(model: Any) -> int:
    """Return how many layers of a model have merged their adapter."""
    return sum(getattr(one, "merged", False) is True for one in model.modules())


#: What both variants call, or are called by.
_MERGING = (f"{_UTILS}:_merge_or_unmerge_lora_", f"{_UTILS}:merged_lora_context")

PATCH = Patch(
    id="verl.lora-merged-sync",
    summary="FSDP2 with lora.merge=True sends merged weights to the rollout",
    why="verl merges the adapter, takes references to the weights, restores the base weights, and only then "
    "reads what it sends. So with FSDP2 the rollout gets the base model in each update: rewards do not "
    "rise, and nothing says why. With the patch the base weights are restored once the last weight has been "
    "read, as in verl 0.9. A weight is copied once more as it is sent. Adapters outside the wrapped layers, "
    "such as on the merger of Qwen2.5-VL with target_modules=all-linear, are never merged, in verl 0.9 "
    "neither. With the patch they are. Nor are DoRA adapters: peft assigns `weight.data`, which changes no "
    "shard. With the patch peft merges them on whole tensors, a layer at a time, and so it merges "
    "convolutions, experts, and weights with fewer rows than ranks, on whose shards it fails.",
    evidence="verl 0.9.0 keeps weights merged until they are read (#7014). What is sent is float64's W + BA, "
    "also for an adapter outside the wrapped layers, and for DoRA and the rest what peft's merge_and_unload "
    "gives in float64.",
    changes=("numbers",),
    met="LoRA that is merged (lora.merge=True) on FSDP2.",
    upstream=("verl-project/verl#7014", "verl-project/verl#6782"),
    targets=one_target(
        VERL,
        variant(
            "0.7.1 and 0.8",
            replaced(f"{_ENGINE}:FSDPEngine.get_per_tensor_param", make_get_per_tensor_param),
            replaced(f"{_UTILS}:fsdp_merge_unmerge", make_fsdp_merge_unmerge),
            *_MERGING,
            Absent(site=_STREAM),
        ),
        # It keeps weights merged until they are read.
        variant("0.9", replaced(f"{_UTILS}:fsdp_merge_unmerge", make_counted_merge), *_MERGING, _STREAM),
        tells=(_ENGINE,),
    ),
)
