"""verl's FSDP engine around a tiny model, in one CPU process in which data parallel ranks take turns.

The loop over micro-batches, what comes before and after a model, and the losses are upstream's own. Stood in
for are FSDP, which would average gradients over ranks as `step` does, the one collective of the loop, which
adds up tokens and whose result is known here beforehand, and the model: a table of numbers in float64.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from overlay.compat.cuda_on_cpu import replaced

#: Tokens that there are.
VOCABULARY = 13
#: The ways in which verl makes one loss of those of the tokens.
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


class Table(torch.nn.Module):
    """A model whose logits for a token are a row of a table: [1, tokens, width]."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = SimpleNamespace()
        start = torch.randn(VOCABULARY, width, generator=generator, dtype=torch.float64)
        self.rows = torch.nn.Parameter(start)

    def forward(self, input_ids: torch.Tensor, **_settings: Any) -> SimpleNamespace:
        """Return the rows of the tokens, [1, tokens], as verl looks for them."""
        return SimpleNamespace(logits=self.rows[input_ids])


def build(engine_class: Any, model: torch.nn.Module, ranks: int = 1) -> Any:
    """Return an engine of the class, or of one that derives from it, without optimizer and checkpoints.

    `engine_class`: verl's `FSDPEngineWithLMHead` or `FSDPEngineWithValueHead`. `model`: is called with the
    tokens of a micro-batch, [1, tokens]. `ranks`: data parallel ranks that the engine is told of.
    """
    methods = {
        "get_data_parallel_size": lambda _self: ranks,
        "get_data_parallel_group": lambda _self: None,
        "is_mp_src_rank_with_outputs": lambda _self: True,
        # Ranks that take turns have one gradient.
        "optimizer_zero_grad": lambda _self: None,
        "optimizer_step": lambda _self: 0.0,
    }
    alone = type(engine_class.__name__, (engine_class,), methods)
    engine: Any = object.__new__(alone)
    vars(engine).update(
        module=model,
        ulysses_sequence_parallel_size=1,
        use_ulysses_sp=False,
        engine_config=SimpleNamespace(entropy_checkpointing=False),
        _autocast_dtype=torch.float32,
        pad_to_length=None,
    )
    return engine


def draw_batch(draw: random.Random, samples: int, *, silent: bool = True) -> TensorDict:
    """Draw padded prompts and responses, masks, and the tokens without padding: what verl's losses read.

    `draw`: what is drawn from. `samples`: how many. Some tokens of a response do not count. `silent`: whether
    some samples have no token that counts.
    """
    prompts, responses = ([draw.randint(1, most) for _ in range(samples)] for most in (4, 6))
    width, wide = max(prompts), max(responses)
    tokens = [
        torch.tensor([draw.randrange(VOCABULARY) for _ in range(prompt + response)])
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    prompt_ids, response_ids = torch.zeros(samples, width).long(), torch.zeros(samples, wide).long()
    attention, counts = torch.zeros(samples, width + wide).long(), torch.zeros(samples, wide).long()
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        prompt_ids[row, width - prompt :] = tokens[row][:prompt]
        response_ids[row, :response] = tokens[row][prompt:]
        attention[row, width - prompt : width + response] = 1
        share = draw.choice((0.0, 0.7, 1.0, 1.0)) if row else 1.0
        counts[row, :response] = torch.tensor([int(draw.random() < share) for _ in range(response)])
        if not silent:
            counts[row, 0] = 1
    batch = TensorDict(
        {
            "input_ids": nested(tokens),
            "position_ids": nested([torch.arange(len(row)) for row in tokens]),
            "prompts": prompt_ids,
            "responses": response_ids,
            "attention_mask": attention,
            "response_mask": counts,
            "loss_mask": counts,
        },
        batch_size=samples,
    )
    return tu.assign_non_tensor(batch, temperature=1.0, max_response_len=wide, max_seq_len=width + wide)


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    """Return the rows as one nested (jagged) tensor."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def before_responses(batch: TensorDict) -> list[torch.Tensor]:
    """Return for each sample the tokens from which those of its response are predicted, [response]."""
    lengths = batch["attention_mask"][:, batch["prompts"].shape[1] :].sum(dim=1).tolist()
    return [row[-1 - length : -1] for row, length in zip(batch["input_ids"].unbind(), lengths, strict=True)]


def mean_of_batch(sums: list[torch.Tensor], batch: TensorDict, mode: str) -> torch.Tensor:
    """Return the loss of a batch by verl's definition of a mode, in plain arithmetic.

    `sums`: of each sample, the sum over the tokens of its response that count. `batch`: as `draw_batch` makes
    it. `mode`: verl's `loss_agg_mode`.
    """
    tokens = [int(row.sum()) for row in batch["response_mask"]]
    if mode == "seq-mean-token-mean":
        sums = [one / max(count, 1) for one, count in zip(sums, tokens, strict=True)]
    if mode == "seq-mean-token-sum-norm":
        sums = [one / batch["response_mask"].shape[1] for one in sums]
    return torch.stack(sums).sum() / (max(sum(tokens), 1) if mode == "token-mean" else len(tokens))


def gradient_off(found: Any, want: torch.Tensor, tolerance: float = 1e-6) -> str:
    """Return by how much a gradient is off, empty if it is not.

    The tolerance is relative to the norm of `want`, or absolute if that is zero. verl adds 1e-8 to its count
    of tokens.
    """
    size = float(want.norm()) or 1.0
    error, ratio = float((found - want).norm()) / size, float(found.norm()) / size
    return "" if error <= tolerance else f"the gradient is off by {error:.3g}, {ratio:.3f} times its size"


class _Told(Exception):  # noqa: N818 -- not an error: a rank stops there on purpose
    """A rank has said how many tokens it has."""


@contextlib.contextmanager
def on_cpu(engine_class: Any, tokens: torch.Tensor | Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Let an engine of the class run on this CPU, as one of several ranks.

    `engine_class`: as in `build`. `tokens`: how many the ranks have together, or what is called with those of
    this rank: it stops there.
    """

    def all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None) -> None:
        """Leave what all ranks have, as they count tokens and nothing else."""
        del op, group
        if callable(tokens):
            tokens(tensor.clone())
            raise _Told
        tensor.copy_(tokens)

    # Of an engine of somebody's own: that of verl's, which it comes from.
    own = [base.__module__ for base in engine_class.__mro__ if base.__module__.startswith("verl.")]
    home = sys.modules[own[0]]
    with (
        replaced(torch.distributed, "all_reduce", all_reduce),
        # From 0.9 on verl takes a machine without a device for one with CUDA.
        replaced(home, "get_device_id", lambda: "cpu"),
        replaced(home, "get_device_name", lambda: "cpu"),
    ):
        yield


def step(
    engine_class: Any,
    model: torch.nn.Module,
    batch: TensorDict,
    loss: Callable[..., Any],
    *,
    ranks: int = 1,
    **cut: Any,
) -> list[dict[str, Any]]:
    """Run one forward and backward over a batch, and leave the gradient in the model.

    Args:
        engine_class: As in `build`.
        model: As in `build`. Its gradient is new.
        batch: Of all ranks together: as many samples for each.
        loss: verl's own, with its configuration.
        ranks: Data parallel ranks among which the batch is dealt out.
        cut: How a rank's share is cut into micro-batches, in verl's words: `micro_batch_size_per_gpu`, or
            `use_dynamic_bsz` and `max_token_len_per_gpu`.

    Returns:
        What the engine returned, for each rank.

    """
    model.zero_grad()
    engine = build(engine_class, model, ranks)
    shares = tu.chunk_tensordict(batch, ranks) if ranks > 1 else [batch]
    settings = {"use_dynamic_bsz": False, "global_batch_size": len(batch), **cut}
    shares = [tu.assign_non_tensor(share, **settings) for share in shares]
    # First each rank says how many tokens it has, and gets no further.
    told: list[torch.Tensor] = []
    for share in shares:
        with contextlib.suppress(_Told), on_cpu(engine_class, told.append):
            engine.train_batch(share, loss)
    tokens = torch.stack(told).sum(0)
    with on_cpu(engine_class, tokens):
        outputs = [engine.train_batch(share, loss) for share in shares]
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= ranks
    return outputs
