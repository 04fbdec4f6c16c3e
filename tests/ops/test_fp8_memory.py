"""Working memory of fxrewrite::fp8_linear: the weight is never copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import fxrewrite.ops

pytestmark = [
    pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a forked process starts with a peak of its own"),
]
N = K = 4096
BLOCKS = {
    "tensor": None,
    "rows": [1, K],
    "columns": [N, 1],
    "blocks": [128, 128],
    "blocks of rows": [1, 128],
}
ROWS, DTYPES = (1, 16, 64, 256, 512), ("bfloat16", "float16", "float32")

# Each case in a fork, whose peak nothing before has raised. A small call comes first: pages of code that are
# touched for the first time would count too.
_SCRIPT = """
import json, os, resource, sys, torch
import fxrewrite.ops
torch.set_num_threads(1)
(n, k), blocks, rows, dtypes = map(json.loads, sys.argv[1:])
op = torch.ops.fxrewrite.fp8_linear
weight = torch.zeros(n, k, dtype=torch.uint8).view(torch.float8_e4m3fn)
def grid(n, k, block):
    return torch.ones(-(-n // block[0]), -(-k // block[1])) if block else torch.ones(())
def measure(m, dtype, block):
    x, scale = torch.ones(m, k, dtype=getattr(torch, dtype)), grid(n, k, block)
    op(x[:, :256].contiguous(), weight[:256, :256].contiguous(), grid(256, 256, block), None, block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = op(x, weight, scale, None, block)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return peak * 1024 - out.nbytes
for m in rows:
    for dtype in dtypes:
        for name, block in blocks.items():
            sys.stdout.flush()
            if os.fork() == 0:
                print(json.dumps([m, dtype, name, measure(m, dtype, block)]), flush=True)
                os._exit(0)
            assert os.wait()[1] == 0
"""


def test_working_memory():
    """Beyond weight, activations and result: at most 4 MiB. (A decoded weight would be 32 MiB.)"""
    arguments = map(json.dumps, ([N, K], BLOCKS, ROWS, DTYPES))
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == len(ROWS) * len(DTYPES) * len(BLOCKS)
    assert [case for case in cases if case[-1] > 4 << 20] == []
