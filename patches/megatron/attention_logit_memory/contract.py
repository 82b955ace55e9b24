"""What is logged is the greatest logit of one step, and no graph of a step outlives it."""

import functools
import gc
import importlib
import os
import time
import weakref
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

#: Tokens, sequences, heads, size of a head; micro-batches of a step.
TOKENS, SEQUENCES, HEADS, SIZE = 5, 2, 3, 4
MICRO_BATCHES = 3
#: Seconds.
PATIENCE = 10.0


def wrong(seed: str) -> str:
    """Return what is kept, or logged, that should not be; empty if nothing is.

    Under replayed CUDA graphs too, where 0.19 alone logs 0.
    """
    os.environ["TE_STAND_IN"] = "2.12.0"
    from overlay.compat.cpu_transformer_engine import install

    install()
    found: str = _trained(seed, held=_stand_in())
    return found


@parts.on_one_rank
def _trained(_seed: str, *, held: list[weakref.ref[Any]]) -> str:
    held.clear()
    for clips, replayed in ((False, False), (True, False), (False, True)):
        if off := _steps(_attention(clips=clips), held, clips=clips, replayed=replayed):
            return off
    return ""


def _steps(attention: Any, held: list[weakref.ref[Any]], *, clips: bool, replayed: bool) -> str:
    """Take three steps of several micro-batches, and return what is wrong after one of them."""
    import torch
    from megatron.core.optimizer.qk_clip import clip_qk

    # As much of a chunk of a model as Megatron and the patch look at: of the other layers upstream sees none.
    decoder = SimpleNamespace(layers=[SimpleNamespace(self_attention=attention)])
    predicting = _attention(clips=clips)  # several tokens
    chunk = SimpleNamespace(
        module=SimpleNamespace(module=SimpleNamespace(decoder=decoder)),
        modules=torch.nn.ModuleList([attention, predicting]).modules,
    )
    captured: Any = None
    for _ in range(3):
        greatest = []
        for _ in range(MICRO_BATCHES):
            states = torch.randn(3, TOKENS, SEQUENCES, HEADS, SIZE, requires_grad=True).unbind()
            if captured is None:
                (attention(*states).sum() + predicting(*states).sum()).backward()
            logits = torch.einsum("qbhd,kbhd->bhqk", *states[:2])
            greatest.append(logits.detach().amax((0, 2, 3)))
            del states, logits
        of_heads = torch.stack(greatest).amax(0)
        if captured is not None:
            # A graph that is replayed runs no Python: it writes where it did before.
            captured.copy_(of_heads)
        elif replayed:
            captured = attention.core_attention.current_max_attn_logits.detach()
        logged, right = clip_qk([chunk], log_max_only=not clips), float(of_heads.max())
        if abs(logged - right) > 1e-4:
            of = "a replayed graph" if replayed else "the step"
            return f"what is logged is {logged:.4f}, and the greatest of {of} {right:.4f}"
        if kept := _kept(held):
            how = "clipping" if clips else "logging alone"
            return f"with {how} the graphs of {kept} micro-batches are kept"
    return ""


def _kept(held: list[weakref.ref[Any]]) -> int:
    """Return how many are still there, once the thread of gloo has let go of what it reduced."""
    end = time.monotonic() + PATIENCE
    while True:
        gc.collect()
        kept = sum(one() is not None for one in held)
        if not kept or time.monotonic() > end:
            return kept
        time.sleep(0.01)


@functools.cache
def _stand_in() -> list[weakref.ref[Any]]:
    """Let Transformer Engine's attention return logits; return references to what their graphs hold.

    Once in a process: Megatron's attention is a subclass of the first.
    """
    import torch

    held: list[weakref.ref[Any]] = []

    class DotProductAttention(torch.nn.Module):
        """Attention that also returns the greatest logit of each head."""

        def __init__(self, *_args: Any, **_options: Any) -> None:
            super().__init__()

        def forward(self, query: Any, key: Any, value: Any, _mask: Any, **_options: Any) -> Any:
            scores = torch.einsum("qbhd,kbhd->bhqk", query, key)
            hook = functools.partial(lambda _grad: None)
            scores.register_hook(hook)  # which lives as long as the graph
            held.append(weakref.ref(hook))
            out = torch.einsum("bhqk,kbhd->qbhd", scores.softmax(-1), value)
            return out.flatten(2), scores.amax((0, 2, 3))

    vars(importlib.import_module("transformer_engine.pytorch"))["DotProductAttention"] = DotProductAttention
    return held


def _attention(*, clips: bool) -> Any:
    """Return as much of Megatron's self-attention as clipping sees: it scales nothing, and starts anew."""
    import torch
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    config = parts.small_transformer(hidden_size=HEADS * SIZE, num_attention_heads=HEADS)
    config.log_max_attention_logit, config.qk_clip = not clips, clips

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core_attention = TEDotProductAttention(config, 1, AttnMaskType.causal, "self")

        def forward(self, *states: Any) -> Any:
            return self.core_attention(*states, None, AttnMaskType.causal)

        def clip_qk(self) -> None:
            self.core_attention.current_max_attn_logits = None

    return Attention()


CONTRACT = parts.contract("megatron.attention-logit-memory", wrong)
