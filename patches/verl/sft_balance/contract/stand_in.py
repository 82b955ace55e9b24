"""What stands in for a GPU engine and for data under verl's SFT trainer on Ray, on a CPU.

Imported before verl, by the driver and by each Ray worker. Stood in for are packages that verl imports and
does not use here (`overlay.compat.verl_imports`), and the training worker: `Worker` has the methods of verl's
`TrainingWorker` with the same dispatch, and a bigram in float64 for a model. The loss is verl's own;
reductions are over gloo.
"""

import os
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from overlay.compat import verl_imports

warnings.simplefilter("ignore")


Method = TypeVar("Method", bound="Callable[..., Any]")

#: Size of the vocabulary. Token 0 is padding.
VOCABULARY = 17


verl_imports.stand_in()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import verl  # noqa: E402
from verl.single_controller.base import Worker as VerlWorker  # noqa: E402
from verl.single_controller.base.decorator import (  # noqa: E402
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.utils.losses import sft_loss  # noqa: E402


def tokens(uid: int, length: int) -> torch.Tensor:
    """Return the tokens of a sample, [length], which are its own and never padding."""
    return (torch.arange(length) * (uid + 3) + uid) % (VOCABULARY - 1) + 1


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples of given lengths, as verl's multi-turn dataset gives them."""

    def __init__(self, parquet_files: Any, config: Any, **_rest: Any) -> None:
        self.lengths, self.config = list(parquet_files), config

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, uid: int) -> dict[str, Any]:
        length = self.lengths[uid]
        mask = torch.ones(length)
        mask[: 1 + length // 4] = 0  # the prompt
        sample: dict[str, Any] = {
            "input_ids": tokens(uid, length),
            "position_ids": torch.arange(length),
            "loss_mask": mask,
        }
        if self.config.pad_mode != "no_padding":
            sample["attention_mask"] = torch.ones(length, dtype=torch.long)
            padding = self.config.max_length - length
            return {name: torch.nn.functional.pad(row, (0, padding)) for name, row in sample.items()}
        sample["uid"] = uid
        if self.config.multi_modal:
            sample["position_ids"] = torch.arange(4 * length).view(4, length) + uid
            sample["multi_modal_inputs"] = {"pixel_values": torch.full((uid % 3, 2), float(uid))}
        return sample


def on_every_rank(method: Method) -> Method:
    """Send what a method is called with to every worker, as verl does for what is no batch."""
    made: Method = register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)
    return made


def in_shares(method: Method) -> Method:
    """Send each data parallel rank its share of a batch, as verl does for `TrainingWorker.train_batch`."""
    dispatch = make_nd_compute_dataproto_dispatch_fn(mesh_name="train")
    made: Method = register(dispatch_mode=dispatch, blocking=False)(method)
    return made


class Worker(VerlWorker):  # type: ignore[misc, unused-ignore]
    """A training worker of one rank, over gloo. Every metric that it reports is that of the whole batch."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        # The ranks meet at a file: another process may have taken the port that verl chose for them.
        place = Path(tempfile.gettempdir(), f"ranks-{os.environ['WG_PREFIX']}-{os.environ['MASTER_PORT']}")
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
        self._groups = {size: self._new_groups(size) for size in (1, 2, ranks)}
        self.lay_out(1)
        dist.barrier()
        if rank == 0:
            place.unlink()

    def _new_groups(self, size: int) -> Any:
        """Return the data parallel group of this rank where `size` ranks share a model."""
        world = range(dist.get_world_size())
        groups = [dist.new_group([rank for rank in world if rank % size == first]) for first in range(size)]
        return groups[dist.get_rank() % size]

    @on_every_rank
    def lay_out(self, size: int) -> None:
        """Let `size` ranks share a model, and with it a data parallel rank."""
        self.group = self._groups[size]
        for name in ("_Worker__dispatch_dp_rank", "_Worker__collect_dp_rank"):
            getattr(self, name).pop("train", None)  # verl lays out once
        first = dist.get_rank() % size == 0
        self._register_dispatch_collect_info("train", dp_rank=dist.get_rank() // size, is_collect=first)

    @on_every_rank
    def set_loss_fn(self, loss_fn: Any) -> None:
        """Take no loss: it is verl's `sft_loss`."""

    @on_every_rank
    def reset(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weights = torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
        self.weights.requires_grad_()
        self.calls = 0

    @on_every_rank
    def count(self) -> int:
        return self.calls

    @on_every_rank
    def save_checkpoint(self, local_path: str, global_step: int = 0, max_ckpt_to_keep: Any = None) -> None:
        """Write nothing."""

    @on_every_rank
    def load_checkpoint(self, local_path: str) -> None:
        """Read nothing."""

    @in_shares
    def train_batch(self, data: Any) -> Any:
        self.calls += 1
        received = _rows(data)
        ids, mask = data["input_ids"], data["loss_mask"]
        count = mask.values().sum() if mask.is_nested else mask.sum()
        dist.all_reduce(count, group=self.group)
        ranks = dist.get_world_size(self.group)
        tu.assign_non_tensor(data, dp_size=ranks, batch_num_tokens=count.item())
        if not ids.is_nested:  # padding is behind, so the rows are as good as one jagged tensor
            data["response_mask"] = mask.roll(-1, dims=1)
        flat = ids.values() if ids.is_nested else ids.flatten()
        values = self.weights.log_softmax(-1)[flat, flat.roll(-1)]
        log_probs = (
            torch.nested.nested_tensor_from_jagged(values, ids.offsets())
            if ids.is_nested
            else values.view_as(ids)
        )
        loss, _ = sft_loss(None, {"log_probs": log_probs}, data)
        (gradient,) = torch.autograd.grad(loss, self.weights)
        loss = loss.detach()
        for tensor in (loss, gradient):
            dist.all_reduce(tensor, group=self.group)
            tensor.div_(ranks)
        shares: list[Any] = [None] * ranks
        dist.all_gather_object(shares, received, group=self.group)
        with torch.no_grad():
            self.weights -= gradient
        metrics = {
            "loss": loss.item(),
            "grad_norm": gradient.norm().item(),
            "gradient": gradient.flatten().tolist(),
            "lr": 1.0,
            "mfu": 0.0,
            "shares": shares,
        }
        return tu.get_tensordict({}, {"metrics": metrics}).cpu()


def _rows(data: Any) -> dict[str, Any]:
    """Return ids and lengths of the samples in order, and whether each field is the sample's own."""
    ids = list(data["input_ids"].unbind())
    told = {"global_token_num": tu.get(data, "global_token_num"), "verl": verl.__file__}
    if not data["input_ids"].is_nested:
        lengths = data["attention_mask"].sum(-1).tolist()
        return {**told, "uids": [row.tolist()[:3] for row in ids], "lengths": lengths, "intact": True}
    uids = tu.get(data, "uid")
    lengths = [len(row) for row in ids]
    intact = all(torch.equal(row, tokens(uid, len(row))) for uid, row in zip(uids, ids, strict=True))
    if "multi_modal_inputs" in data.keys():  # noqa: SIM118 -- a TensorDict iterates over its rows
        positions = data["position_ids"]
        positions._ragged_idx = 2  # as verl's workers do: a trip through Ray loses it
        images = tu.get(data, "multi_modal_inputs")
        for uid, length, row, image in zip(uids, lengths, positions.unbind(), images, strict=True):
            intact = intact and torch.equal(row, torch.arange(4 * length).view(4, length) + uid)
            intact = intact and image["pixel_values"].tolist() == [[float(uid)] * 2] * (uid % 3)
    return {**told, "uids": uids, "lengths": lengths, "intact": intact}


def lognormal(seed: int, samples: int, longest: int) -> list[int]:
    """Return lengths in tokens with a long tail, up to `longest`, of which some reach it."""
    draw = random.Random(seed)
    return [max(8, min(longest, round(draw.lognormvariate(7, 1)))) for _ in range(samples)]
