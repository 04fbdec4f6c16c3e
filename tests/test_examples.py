"""Every example runs as it is, in a process of its own, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
RUNS = {
    "sana.py": (["--layers", "1", "--size", "8", "--rounds", "1"], ["linear_attention", "ratio", "speed-up"]),
    "custom_rule.py": ([], ["1 of 1 matched", "largest difference to the original"]),
    "compile_backend.py": ([], ["17 tokens: largest difference"]),
    "sana_video.py": (["--layers", "1"], ["linear_attention 1 of 1", "RMS difference to the original: "]),
    "flux_cpu.py": (["--rounds", "1"], ["sdpa", "384 pixels: largest difference"]),
    "fp8_generate.py": ([], ["fp8_matmul", "tokens after:"]),
    "pipeline.py": ([], ["sdpa", "under quality('exact'): 0"]),
    "ci_gate.py": ([], ["as expected"]),
    "tensor_parallel.py": ([], ["rank 0 of 2:", "sdpa 2 of 2", "linear 12 of 12", "to one process: 0.0"]),
    "export_and_reload.py": ([], ["2 of 2 sites matched", "in another process: (3, 64)"]),
    "flux_dev.py": ([], ["561 sites found", "sdpa: 57 of 57 matched"]),
}
SLOW = {"flux_dev.py", "sana_video.py", "flux_cpu.py", "fp8_generate.py", "pipeline.py", "tensor_parallel.py"}


def test_all_examples_are_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in RUNS]
)
def test_example(name):
    pytest.importorskip("diffusers")
    arguments, parts = RUNS[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for part in parts:
        assert part in done.stdout
