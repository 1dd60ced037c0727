"""What a start tells about compilations."""

import logging

import pytest
import torch

from kernels import ops
from worker import compile_log


@pytest.mark.parametrize(("launch_seconds", "kernels"), [(0.0, ["linear", "rms_norm"]), (1e9, [])])
def test_only_slow_calls_of_our_operators_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launch_seconds: float, kernels: list[str]
) -> None:
    monkeypatch.setattr(compile_log, "_LAUNCH_SECONDS", launch_seconds)
    with caplog.at_level(logging.INFO), compile_log.compile_log():
        ops.linear(torch.ones(2, 4), torch.ones(4, 4), None).relu()
        ops.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)
    assert [vars(record)["kernel"] for record in caplog.records] == kernels
