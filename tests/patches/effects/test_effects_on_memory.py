"""What patches count that are about memory, against what is counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from effect_cases import NO_MODULE, counts_of, fix

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random


def test_recompute(draw: random.Random) -> None:
    """What nothing else holds is let go of, and counted in bytes; what somebody holds stays."""
    counts = counts_of("megatron.recompute")
    release = fix("megatron.recompute").make_release(counts)
    size = draw.randint(1, 99)
    held = torch.rand(3, requires_grad=True)
    release([torch.rand(size, requires_grad=True), torch.rand(size), held])
    release([held])
    assert counts.read() == {"calls": 2, "changed": 1, "released": 4 * size, "held": 2}
    assert held.numel() == 3


def test_fsdp_output_memory() -> None:
    counts = counts_of("verl.fsdp-output-memory")

    class Loop:
        def forward_backward_batch(self) -> None:
            """Run."""

    class Step(Loop):
        def forward_step(self) -> None:
            """Step."""

    Loop.forward_backward_batch.__module__ = "verl.workers.engine"
    module = SimpleNamespace(FSDPEngineWithLMHead=Step, FSDPEngine=Loop)
    leaf = torch.rand(2, requires_grad=True)
    output = {"model_output": {"a": leaf * 2, "b": leaf.detach(), "c": 1}, "loss": 0.0}
    step = fix("verl.fsdp-output-memory").make_forward_step(lambda *_: (None, output), module)
    step(Step(), None, None, True)
    assert counts.read() == {"changed": 1}


@pytest.mark.parametrize("patch", ["slime.loss-memory", "miles.loss-memory"])
def test_loss_memory(patch: str, draw: random.Random) -> None:
    """The rows of the responses, in float32; without a gradient nothing is kept by anybody."""
    from overlay.patches._packed_loss.compute import make_compute

    counts = counts_of(patch)
    responses = [draw.randint(1, 4), draw.randint(1, 4)]
    totals = [one + 2 for one in responses]
    mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1,
        get_tensor_model_parallel_group=lambda: None,
    )

    def get_responses(logits: Any, **_: Any) -> Any:
        end = 0
        for total, response in zip(totals, responses, strict=True):
            end += total
            yield logits[0, end - response - 1 : end - 1], torch.zeros(response, dtype=torch.long)

    compute = make_compute(SimpleNamespace(mpu=mpu, get_responses=get_responses), counts)
    args = SimpleNamespace(allgather_cp=False, qkv_format="thd", rollout_temperature=1.0)
    for gradient in (False, True):
        logits = torch.rand(1, sum(totals), 16, requires_grad=gradient)
        tokens = [torch.zeros(total, dtype=torch.long) for total in totals]
        lengths = {"total_lengths": totals, "response_lengths": responses}
        compute(logits, args, False, unconcat_tokens=tokens, **lengths)
    assert counts.read() == {"changed": 1, "kept_out": sum(responses) * 16 * 4}


def test_uniform_recompute_counts_the_forwards_that_it_cuts(draw: random.Random) -> None:
    counts = counts_of("megatron.uniform-recompute")
    forward = fix("megatron.uniform-recompute").checkpointed_forward(lambda self: None, NO_MODULE)
    cut = 0
    for _ in range(20):
        method, layers, count = draw.choice(["uniform", "block"]), draw.randint(1, 9), draw.randint(1, 4)
        config = SimpleNamespace(recompute_method=method, recompute_num_layers=count)
        forward(SimpleNamespace(config=config, num_layers_per_pipeline_rank=layers))
        cut += method == "uniform" and layers % count > 0
    assert counts.changed == cut


def test_the_logits_that_are_begun_anew_are_counted(draw: random.Random) -> None:
    counts = counts_of("megatron.attention-logit-memory")
    clip = fix("megatron.attention-logit-memory").clip_qk(lambda model, log_max_only: 0, NO_MODULE)
    kept = [draw.choice([None, torch.rand(4)]) for _ in range(9)]
    layers = [SimpleNamespace(current_max_attn_logits=logits) for logits in kept]
    logged = sum(layer.current_max_attn_logits is not None for layer in layers)
    chunk = SimpleNamespace(modules=lambda: layers)
    clip([chunk], log_max_only=False)
    assert counts.changed == 0
    clip([chunk], log_max_only=True)
    assert counts.changed == logged


def test_sends_that_keep_their_memory_are_counted(draw: random.Random) -> None:
    counts = counts_of("megatron.vpp-send-before-free")
    send = fix("megatron.vpp-send-before-free").p2p_ops(lambda **_words: [], NO_MODULE)
    sent = [draw.choice([None, torch.ones(1)]) for _ in range(9)]
    for tensor in sent:
        send(tensor_send_next=tensor)
    assert counts.changed == sum(tensor is not None for tensor in sent)


def test_what_offloading_left_behind_is_counted(draw: random.Random) -> None:
    counts = counts_of("verl.megatron-offload-rest")
    number, copies = draw.randint(1, 5), draw.randint(1, 5)
    state = {index: {"master_param": torch.ones(1)} for index in range(number)} | {-1: {"exp_avg": 1}}
    engine = SimpleNamespace(
        optimizer=SimpleNamespace(optimizer=SimpleNamespace(state=state)),
        module=[
            SimpleNamespace(
                modules=lambda: [SimpleNamespace(_fp8_workspaces=dict.fromkeys(range(copies))), object()]
            )
        ],
    )
    move = fix("verl.megatron-offload-rest").make_to(lambda *_given: None, NO_MODULE)
    move(engine, "cpu")
    assert counts.changed == number + copies
