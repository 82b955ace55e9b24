"""What is counted where virtual stages have no hooks to be put together."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from overlay.patches.verl.vpp_training_hooks import EFFECT, register_megatron_training_hooks

pytest.importorskip("megatron.core")


@pytest.mark.parametrize("overlaps", [True, False])
def test_only_a_model_that_has_hooks_is_counted(overlaps: bool) -> None:
    config = SimpleNamespace(no_sync_func=None, grad_sync_func=None, param_sync_func=None)
    model = [SimpleNamespace(config=config, no_sync=place) for place in (1, 2)]

    def original(chunks: list[SimpleNamespace], _optimizer: object) -> None:
        if overlaps:
            config.no_sync_func = chunks[0].no_sync

    EFFECT.clear()
    register_megatron_training_hooks(original, ModuleType("verl"))(model, None)
    assert config.no_sync_func == ([1, 2] if overlaps else None)
    assert EFFECT.changed == overlaps
