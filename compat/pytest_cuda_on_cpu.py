"""The CPU stand-in for CUDA for a whole run of pytest: `pytest -p overlay.compat.pytest_cuda_on_cpu`.

It is there from before the first test module is imported until the end. What it is, and what a run under it
does not tell, is in `cuda_on_cpu`.
"""

from __future__ import annotations

import contextlib

import pytest

from overlay.compat.cuda_on_cpu import GpuPresentError, cuda_on_cpu


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that goes on where there is a GPU."""
    parser.addoption(
        "--force-cuda-on-cpu",
        action="store_true",
        help="put the CPU stand-in for CUDA in place although there is a GPU, which is not used then",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put the stand-in in place, and take it out when pytest ends."""
    undo = contextlib.ExitStack()
    try:
        undo.enter_context(cuda_on_cpu(force=config.getoption("--force-cuda-on-cpu")))
    except GpuPresentError as error:
        raise pytest.UsageError(str(error)) from error
    config.add_cleanup(undo.close)


def pytest_report_header() -> str:
    """Say what runs here, and what it does not tell."""
    return "overlay: CUDA is stood in for by the CPU; timing and the numerics of GPU kernels are out of scope"
