"""Small things that released verls get wrong: the contract of each patch, without it and with it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from contract_tests import SEED, Contracts, holds

from overlay.catalogue.registry import load_patches
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from contract_tests import Found

pytestmark = pytest.mark.real

#: The releases that a patch is for.
AFFECTED: dict[str, tuple[str, ...]] = {
    "verl.critic-loss-scale": ("0.7.0", "0.7.1", "0.8.0"),
    "verl.distillation-loss-scale": ("0.8.0",),
    "verl.fsdp-output-memory": ("0.6.1", "0.7.0", "0.7.1", "0.8.0"),
    "verl.megatron-offload-rest": ("0.7.0", "0.7.1", "0.8.0"),
    "verl.moe-aux-scale": ("0.6.1", "0.7.1", "0.8.0"),
    "verl.weight-transfer-order": ("0.7.1", "0.8.0"),
    "verl.lora-own-memory": ("0.8.0",),
    "verl.mooncake-mark": ("0.7.1", "0.8.0"),
    # Of each minor version one, beside what the support matrix runs.
    "verl.resume-epoch-boundary": ("0.7.1", "0.8.0"),
    "verl.resume-lr-schedule": ("0.7.1", "0.8.0"),
    "verl.metrics": ("0.7.1", "0.8.0"),
}
#: Those that 0.9.0 has mended. What it offloads needs a device for this contract.
CURED: dict[str, tuple[str, ...]] = {
    patch: ("0.9.0",)
    for patch in AFFECTED
    if not patch.startswith("verl.resume-") and patch not in ("verl.metrics", "verl.megatron-offload-rest")
}
# It copies all that it receives.
CURED["verl.lora-own-memory"] = ("0.7.1", "0.9.0")
CONTRACTS = Contracts("verl", AFFECTED, CURED)
alone = CONTRACTS.xfail_where_needed


@pytest.fixture
def found(release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]) -> Found:
    return CONTRACTS.finder(lambda version: release(f"verl=={version}"), findings)


@CONTRACTS.with_the_patch()
def test_with_the_patch_it_is_right(found: Found, patch: str, version: str) -> None:
    assert found(patch, version)[1] == "", SEED


@pytest.mark.parametrize("patch", AFFECTED)
def test_the_patch_is_of_the_form(patch: str) -> None:
    assert_form(load_patches()[patch], __file__)


@pytest.mark.parametrize("patch", CURED)
def test_it_is_left_out_of_what_is_cured(found: Found, patch: str) -> None:
    # A contract that asks ranks names the case before it.
    assert found(patch, "0.9.0")[1].endswith(f"PatchError: {patch} is skipped")


@alone("verl.critic-loss-scale")
def test_upstream_alone_scales_the_loss_of_a_critic(found: Found, version: str) -> None:
    holds(found("verl.critic-loss-scale", version)[0])


@alone("verl.distillation-loss-scale")
def test_upstream_alone_scales_the_loss_of_a_distillation(found: Found, version: str) -> None:
    holds(found("verl.distillation-loss-scale", version)[0])


@alone("verl.fsdp-output-memory")
def test_upstream_alone_lets_go_of_outputs(found: Found, version: str) -> None:
    holds(found("verl.fsdp-output-memory", version)[0])


@alone("verl.megatron-offload-rest")
def test_upstream_alone_offloads_all_of_it(found: Found, version: str) -> None:
    holds(found("verl.megatron-offload-rest", version)[0])


@alone("verl.moe-aux-scale")
def test_upstream_alone_tells_megatron_the_tokens(found: Found, version: str) -> None:
    holds(found("verl.moe-aux-scale", version)[0])


@alone("verl.weight-transfer-order")
def test_upstream_alone_reads_weights_that_are_there(found: Found, version: str) -> None:
    holds(found("verl.weight-transfer-order", version)[0])


@alone("verl.lora-own-memory")
def test_upstream_alone_gives_adapters_memory_of_their_own(found: Found, version: str) -> None:
    holds(found("verl.lora-own-memory", version)[0])


@alone("verl.mooncake-mark")
def test_upstream_alone_marks_nothing_that_is_read(found: Found, version: str) -> None:
    holds(found("verl.mooncake-mark", version)[0])


def test_verl_0_9_0_leaves_marks_to_the_next_transfer(release: Callable[[str], Path]) -> None:
    program = (
        "import sys; from overlay.patches.verl.mooncake_mark.contract import wrong;"
        "sys.stdout.write('said: ' + wrong(sys.argv[1], left=True))"
    )
    said = {}
    for version in ("0.9.0", "0.9.1"):
        environ = {**os.environ, "PYTHONPATH": str(release(f"verl=={version}"))}
        ran = subprocess.run(
            [sys.executable, "-c", program, SEED],
            capture_output=True, text=True, timeout=300, check=True, env=environ,
        )  # fmt: skip
        said[version] = ran.stdout.rpartition("said: ")[2]
    assert said == {"0.9.0": "a mark is left over", "0.9.1": ""}, SEED


@alone("verl.resume-epoch-boundary")
def test_upstream_alone_trains_on_the_next_epoch(found: Found, version: str) -> None:
    holds(found("verl.resume-epoch-boundary", version)[0])


def test_rl_of_verl_0_6_loses_no_epoch(found: Found) -> None:
    # The contract asks it first, and finds nothing before it comes to SFT.
    assert found("verl.resume-epoch-boundary", "0.6.1")[0].startswith("SFT, "), SEED


@alone("verl.resume-lr-schedule")
def test_upstream_alone_goes_on_with_the_schedule(found: Found, version: str) -> None:
    holds(found("verl.resume-lr-schedule", version)[0])


@alone("verl.metrics")
def test_upstream_alone_logs_what_patches_changed(found: Found, version: str) -> None:
    holds(found("verl.metrics", version)[0])
