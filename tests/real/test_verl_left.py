"""What verl 0.9.0 leaves undone beside the defect that a patch fixes."""

from __future__ import annotations

import pytest
from checks import SEED
from listed_sources import Said

pytestmark = pytest.mark.real

PROGRAM = """
import json, sys
from overlay.patches.verl.mooncake_mark.contract import wrong
print(json.dumps({"said": wrong(sys.argv[1], left=True)}))
"""


@pytest.mark.parametrize(("name", "left"), [("verl==0.9.0", "a mark is left over"), ("verl==0.9.1", "")])
def test_verl_0_9_0_leaves_marks_to_the_next_transfer(left: str, said: Said) -> None:
    assert said(PROGRAM)["said"] == left, SEED


TOLD = """
import json
from unittest.mock import MagicMock
from overlay.compat.verl_imports import stand_in
stand_in()
import torch
from verl.utils.dataset import multiturn_sft_dataset as module

def message(**_):
    ids = torch.arange(3)
    images = {"mm_token_type_ids": torch.tensor([[0, 1, 0]]), "pixel_values": torch.ones(2, 4)}
    return ids, torch.ones(3), torch.ones(3), images

data = object.__new__(module.MultiTurnSFTDataset)
vars(data).update(
    dataframe=MagicMock(), tools=None, enable_thinking=None, enable_thinking_default=None, processor=None,
    tokenizer=MagicMock(), pad_mode=module.DatasetPadMode.NO_PADDING, max_length=99, truncation="error",
    _build_messages=lambda _row: [{}, {}], _process_single_message=message, sanity_check=lambda *_: None,
)
print(json.dumps({"keys": sorted(data[0]["multi_modal_inputs"])}))
"""


@pytest.mark.parametrize("name", ["verl==0.9.1"])
def test_multi_turn_sft_tells_no_model_which_tokens_are_of_images(said: Said) -> None:
    assert said(TOLD)["keys"] == ["pixel_values"]


SAVED = """
import json
from types import SimpleNamespace
from unittest.mock import MagicMock
from overlay.compat.verl_imports import stand_in

if __name__ == "__main__":
    stand_in()
    import torch
    from overlay.compat.megatron_on_cpu import megatron
    with megatron():
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
        from megatron.core.dist_checkpointing.strategies.base import async_calls
        from verl.trainer import sft_trainer
        from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager as Manager

        finished = []

        def save(step):
            manager = SimpleNamespace(checkpoint_config=SimpleNamespace(async_save=True))
            written = AsyncRequest(print, (), [])
            Manager._dispatch_finalize(manager, [written], lambda: finished.append(step))

        for name in ("aggressive_empty_cache", "log_gpu_memory_usage", "log_with_rank", "tqdm", "tu"):
            setattr(sft_trainer, name, MagicMock())
        sft_trainer.tqdm = lambda data, **_: data
        trainer = MagicMock(
            resume_global_step=0, steps_per_epoch=2, total_training_steps=2, test_freq=-1, save_freq=2,
            val_dataloader=None, train_dataloader=[{}, {}],
        )
        trainer.engine.is_mp_src_rank_with_outputs.return_value = False
        trainer.config.trainer.total_epochs = 1
        trainer.ckpt_handler.save_checkpoint.side_effect = save
        sft_trainer.SFTTrainer.fit(trainer)
        alone = list(finished)
        async_calls.maybe_finalize_async_calls(blocking=True)
        print(json.dumps({"alone": alone, "asked": finished}))
"""


@pytest.mark.parametrize("name", ["verl==0.9.1"])
def test_the_last_checkpoint_of_sft_waits_for_somebody_to_finish_it(said: Said) -> None:
    assert said(SAVED) == {"alone": [], "asked": [2]}


UPDATED = """
import json
from types import SimpleNamespace
from overlay.patches.verl.lora_own_memory.contract import import_worker
utils, _ = import_worker()
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(3, 2, bias=False)
        self.register_buffer("bias", torch.zeros(2))

    def load_weights(self, weights):
        # As models of vLLM do: what is no parameter is passed over.
        own = dict(self.named_parameters())
        for name, tensor in weights:
            if name in own:
                own[name].data.copy_(tensor)

worker = object.__new__(utils.vLLMColocateWorkerExtension)
model = Model()
worker.model_runner = SimpleNamespace(model=model, vllm_config=None)
utils.is_fp8_model = lambda _config: False
type(worker)._iter_all_models = lambda self: [model]
type(worker)._use_mtp_drafter_weight_sync = lambda self: False
worker._update_weights([("gate.weight", torch.ones(2, 3)), ("bias", torch.ones(2))], None, False)
print(json.dumps({"gate": model.gate.weight.tolist(), "bias": model.bias.tolist()}))
"""


@pytest.mark.parametrize(("name", "bias"), [("verl==0.8.0", 0.0), ("verl==0.9.0", 1.0)])
def test_buffers_keep_their_values_in_vllm_before_0_9(bias: float, said: Said) -> None:
    assert said(UPDATED) == {"gate": [[1.0] * 3] * 2, "bias": [bias] * 2}


REJECTED = """
import json
from types import SimpleNamespace
import torch
from overlay.compat.verl_imports import stand_in
stand_in()
from verl.trainer.ppo import core_algos

estimator = core_algos.get_adv_estimator_fn({name!r})

def advantages(rejected):
    mask = torch.ones(3, 2)
    mask[2] = 0
    rewards = torch.tensor([[0., 1.], [0., 3.], [0., rejected]])
    told = dict(
        token_level_rewards=rewards, response_mask=mask, index=["a"] * 3, config={{}},
        old_log_probs=torch.zeros(3, 2), sum_pi_squared=torch.ones(3, 2),
    )
    return estimator(**told)[0][:2].tolist()

print(json.dumps({{"moved": advantages(2.0) != advantages(9.0)}}))
"""


@pytest.mark.parametrize("name", ["verl==0.9.1"])
@pytest.mark.parametrize(
    ("estimator", "moved"),
    [("grpo_passk", True), ("gpg", True), ("gdpo", True), ("optimal_token_baseline", False)],
)
def test_a_rejected_response_moves_the_others_of_its_group(estimator: str, moved: bool, said: Said) -> None:
    assert said(REJECTED.format(name=estimator))["moved"] is moved
