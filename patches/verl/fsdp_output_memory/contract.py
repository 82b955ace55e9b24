"""Of a micro-batch that is done only its gradient is left."""

import random
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches

#: Relative, in float64.
TOLERANCE = 1e-12
#: The longest sample has 10 tokens.
CUT = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 10}


def wrong(seed: str) -> str:
    """Return what is wrong with a step of verl's own engine over many micro-batches, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch
    import verl
    from packaging.version import Version
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from overlay.compat import cpu_fsdp_engine as cpu

    draw = random.Random(seed)
    model = _watched_model(torch.Generator().manual_seed(draw.randrange(2**31)))
    batch = cpu.draw_batch(draw, 8)
    tokens = batch["input_ids"]
    answered = torch.ones(tokens.values().shape, dtype=torch.bool)
    # What verl takes for the successor of a sample's last token depends on the sample behind it.
    answered[tokens.offsets()[1:] - 1] = False
    weights = torch.randn(answered.shape, dtype=torch.float64) * answered
    batch["weights"] = torch.nested.nested_tensor_from_jagged(weights, tokens.offsets())
    logits = model.block(model.rows[tokens.values()])
    want = torch.log_softmax(logits, -1).gather(1, tokens.values().roll(-1)[:, None])[:, 0]
    (want * weights).sum().backward()
    gradient = model.adapter.grad.clone()

    def loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        return _weighted(model_output, data), {}

    (output,) = cpu.step(FSDPEngineWithLMHead, model, batch.clone(), loss, **CUT)
    if off := cpu.gradient_off(model.adapter.grad, gradient, TOLERANCE):
        return off
    if abs(float(sum(output["loss"]) - (want * weights).sum())) > TOLERANCE * float(weights.abs().sum()):
        return "another loss"
    if left := [index for index, micro_batches in enumerate(model.left) if micro_batches > 1]:
        return f"when micro-batch {left[-1]} begins, something is left of {model.left[left[-1]]} before it"
    # From 0.9 on verl itself hands such engines outputs without a graph, which is no matter of this patch.
    if Version(verl.__version__) < Version("0.9.0.dev0") and (off := _own_engines(model, batch, gradient)):
        return off
    alone = _one_step(FSDPEngineWithLMHead, model, batch, None, forward_only=True)["log_probs"].values()
    right = float((alone - want)[answered].abs().max()) <= TOLERANCE * float(want.abs().max())
    return "" if right else "without gradients, other outputs"


def _weighted(model_output: Any, data: Any) -> Any:
    return (model_output["log_probs"].values() * data["weights"].values()).sum()


def _one_step(engine_class: Any, model: Any, batch: Any, loss: Any, *, forward_only: bool) -> Any:
    """Return the outputs that an engine's step hands on."""
    from overlay.compat import cpu_fsdp_engine as cpu

    engine = cpu.build(engine_class, model)
    with cpu.on_cpu(engine_class, batch["loss_mask"].sum()):
        return engine.forward_step(batch, loss, forward_only=forward_only)[1]["model_output"]


def _own_engines(model: Any, batch: Any, gradient: Any) -> str:
    """Return what is wrong with engines of one's own that need outputs with a graph, empty if nothing is."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from overlay.compat import cpu_fsdp_engine as cpu

    class Own(FSDPEngineWithLMHead):
        """Makes its loss of the outputs."""

        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            loss, output = super().forward_step(micro_batch, loss_function, forward_only)
            return loss + _weighted(output["model_output"], micro_batch), output

    class OwnLoop(FSDPEngineWithLMHead):
        def forward_backward_batch(self, *_given: Any) -> None:
            raise NotImplementedError

    def nothing(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        return 0 * _weighted(model_output, data), {}

    cpu.step(Own, model, batch.clone(), nothing, **CUT)
    if off := cpu.gradient_off(model.adapter.grad, gradient, TOLERANCE):
        return f"of an engine whose own step makes its loss of the outputs, {off}"
    output = _one_step(OwnLoop, model, batch, nothing, forward_only=False)
    kept = output["log_probs"].requires_grad
    return "" if kept else "outputs without a gradient for an engine with a loop of its own"


def _watched_model(generator: Any) -> Any:
    """Return a model with a frozen embedding and a checkpointed block, as with LoRA, that is watched."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils.checkpoint import checkpoint

    from overlay.compat.cpu_fsdp_engine import VOCABULARY, Table

    class Watched(Table):
        """Its logits are rows of a frozen table plus what the adapter makes of them."""

        def __init__(self) -> None:
            super().__init__(VOCABULARY, generator)
            self.rows.requires_grad_(False)
            self.adapter = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64))
            self.watched: list[list[Any]] = []
            #: For each forward pass: of how many before it something was left.
            self.left: list[int] = []

        def forward(self, input_ids: Any, **settings: Any) -> Any:
            self.left.append(sum(any(not one.expired() for one in watched) for watched in self.watched))
            output = super().forward(input_ids, **settings)
            embedded = output.logits.requires_grad_(True)
            output.logits = checkpoint(self.block, embedded, use_reentrant=False)
            tensors = (embedded, output.logits)
            self.watched.append([StorageWeakRef(tensor.untyped_storage()) for tensor in tensors])
            return output

        def block(self, embedded: Any) -> Any:
            return embedded + torch.tanh(embedded * self.adapter[0]) * self.adapter[1]

    return Watched()


CONTRACT = Contract(check=with_patches(wrong, "verl.fsdp-output-memory"), before=("verl.protocol",))
