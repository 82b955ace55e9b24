"""slime's own `train` on a model of a few matrices, under Megatron's data parallelism and optimizers.

Real are the loop over rollouts and steps, Megatron's schedule, its buckets, its optimizers and its gathers of
parameters. The batch is drawn, and the loss is the mean square of what the model makes of it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import torch
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule

from overlay.compat.cuda_on_cpu import replaced
from overlay.compat.slime_on_cpu import import_slime
from overlay.compat.slime_on_cpu.reward_groups import Unset

#: Rows and columns of each matrix, an odd number of rows: ranks that share a bucket cut through one.
SIZE = 9
MATRICES = 4
#: Of Adam: far above what float32 rounds, so that a small gradient is a small step.
EPSILON = 0.1
RATE = 0.05


class Trained:
    """A model and its optimizer, for slime's `train`."""

    def __init__(self, seed: int, *, half: bool = False, flags: Sequence[str] = (), **options: Any) -> None:
        """Make the model.

        `seed`: of weights and batches. The batches are others on each rank. `half`: whether it is of float16.
        `flags`: of Megatron's flags about overlapping, those that are on. `options`: of Megatron's optimizer.
        """
        (found,) = import_slime("model")
        self.module: Any = found
        self.seed = seed
        self.args = Unset(
            **dict.fromkeys(flags, True),
            use_distributed_optimizer=bool(options.get("use_distributed_optimizer")),
            check_for_nan_in_loss_and_grad=not half,
            seq_length=1,
            micro_batch_size=1,
            global_batch_size=1,
            n_samples_per_prompt=1,
        )
        config: Any = TransformerConfig(
            num_layers=MATRICES, hidden_size=8, num_attention_heads=2, fp16=half,
            use_cpu_initialization=True, gradient_accumulation_fusion=False,
        )  # fmt: skip
        self.model = Model(config, starts(seed))
        if half:
            self.model.half()
        overlapped = DistributedDataParallelConfig(
            use_distributed_optimizer=self.args.use_distributed_optimizer,
            grad_reduce_in_fp32=True,
            bucket_size=SIZE * SIZE,
            **{name: True for name in flags if name != "align_grad_reduce"},
        )
        self.ddp = DistributedDataParallel(config, overlapped, self.model)
        adam = {"optimizer": "adam", "weight_decay": 0.0, "clip_grad": 0.0}
        adam |= {"lr": RATE, "fp16": half, "adam_eps": EPSILON, "adam_beta1": 0.9, "adam_beta2": 0.99}
        gathered = {name: True for name in flags if name == "overlap_param_gather"}
        self.optimizer = get_megatron_optimizer(OptimizerConfig(**adam | options | gathered), [self.ddp])

    def rollout(self, number: int, micro_batches: Sequence[int], weight: float = 1.0) -> list[float]:
        """Train on a rollout in as many steps as there are numbers of micro-batches, and return their norms.

        `number`: of the rollout, by which batches are drawn. `micro_batches`: their number in each step.
        `weight`: of the loss.
        """
        module = self.module
        self.args.rollout_batch_size = len(micro_batches)  # by which 0.1 tells how many steps there are
        rank = mpu.get_data_parallel_rank()
        given = iter([one for step in batches(self.seed, number, micro_batches, rank) for one in step])

        def batch(*_args: Any, **_options: Any) -> Any:
            found: dict[str, Any] = defaultdict(lambda: None)
            found["tokens"] = next(given)
            return found

        def loss(_args: Any, _batch: Any, *rest: Any) -> Any:
            value = weight * rest[-1].float().square().mean()
            kept = {"keys": ["loss"], "values": torch.stack([torch.ones(()), value.detach()])}
            return value, torch.tensor(1), kept

        module.get_batch, module.loss_function, module.get_args = batch, loss, lambda: self.args
        for name in ("logging_utils", "tracking_utils", "wandb"):
            if hasattr(module, name):
                setattr(module, name, MagicMock())
        for name in ("reduce_train_step_metrics", "train_metric_utils"):
            if hasattr(module, name):
                setattr(module, name, MagicMock(return_value={}))
        sizes = {"global_batch_sizes": [1] * len(micro_batches)}
        more = sizes if {*sizes} <= {*inspect.signature(module.train).parameters} else {}
        norms: list[float] = []
        take = module.train_one_step

        def step(*args: Any, **named: Any) -> Any:
            found = take(*args, **named)
            norms.append(float(found[1]))
            return found

        with replaced(module, "train_one_step", step):
            rest = [MagicMock()], list(micro_batches)
            module.train(number, [self.ddp], self.optimizer, MagicMock(), *rest, **more)
        return norms

    def save(self) -> None:
        """Save a checkpoint with slime's own `save`, of which nothing is written."""
        self.module.save_checkpoint = MagicMock()
        self.module.save(0, [self.ddp], self.optimizer, MagicMock())

    @torch.no_grad()
    def forward_only(self) -> None:
        """Run the model on something, as slime does for log-probabilities."""
        self.ddp(input_ids=torch.zeros(1, SIZE))

    def weights(self) -> Any:
        """Return [matrices, rows, columns] as they are on this rank, in float64."""
        return torch.stack([one.weight.detach().double() for one in self.model.layers])

    def main_weights(self) -> Any:
        """Return the same of the optimizer's copies in float32, of a model of float16."""
        return torch.stack([one.weight.main_param.detach().double() for one in self.model.layers])


class Model(MegatronModule):
    """The matrices, as Megatron's schedule takes a model."""

    def __init__(self, config: Any, weights: Any) -> None:
        """Start with the weights."""
        super().__init__(config)
        self.model_type = ModelType.encoder_or_decoder
        self.share_embeddings_and_output_weights = False
        layers: Any = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE, bias=False) for _ in weights)
        self.layers = layers
        with torch.no_grad():
            for layer, weight in zip(layers, weights, strict=True):
                layer.weight.copy_(weight)

    def forward(self, input_ids: Any, **_more: Any) -> Any:
        """Return what they make of it."""
        return through(self.layers, input_ids.to(self.layers[0].weight.dtype))

    def set_input_tensor(self, tensor: Any) -> None:
        """Take nothing: there is no stage before."""


def through(layers: Any, states: Any) -> Any:
    """Return what the matrices make of rows, each after a tanh."""
    for layer in layers:
        states = layer(torch.tanh(states))
    return states


def starts(seed: int) -> Any:
    """Return the weights that the model starts with, exact in float16."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(MATRICES, SIZE, SIZE, generator=draw).div(3).half().double()


def batches(seed: int, rollout: int, micro_batches: Sequence[int], rank: int) -> list[Any]:
    """Return the rows of each micro-batch of each step, exact in float16."""
    draw = torch.Generator().manual_seed(seed + 1000 * rollout + 100_000 * (rank + 1))
    return [[torch.randn(4, SIZE, generator=draw).half().float() for _ in range(of)] for of in micro_batches]


class Reference:
    """The same in one process, in float64 and in plain torch."""

    def __init__(self, seed: int, kind: Any, **options: Any) -> None:
        """Take the optimizer of torch's, and what it is given."""
        self.seed = seed
        self.layers = [torch.nn.Linear(SIZE, SIZE, bias=False, dtype=torch.float64) for _ in range(MATRICES)]
        with torch.no_grad():
            for layer, weight in zip(self.layers, starts(seed), strict=True):
                layer.weight.copy_(weight)
        self.optimizer = kind([layer.weight for layer in self.layers], **options)

    def step(self, micro_batches: Sequence[Sequence[Any]], clip: float = 0.0) -> float:
        """Take a step on the micro-batches of each rank, and return the norm of its gradient.

        `micro_batches`: those of each rank. `clip`: the most that the norm may be; 0 for no limit.
        """
        self.optimizer.zero_grad()
        losses = [
            through(self.layers, one.double()).square().mean() for rank in micro_batches for one in rank
        ]
        torch.stack(losses).mean().backward()
        parameters = [layer.weight for layer in self.layers]
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip or float("inf")).item()
        self.optimizer.step()
        return norm

    def weights(self) -> Any:
        """Return [matrices, rows, columns]."""
        return torch.stack([layer.weight.detach().clone() for layer in self.layers])
