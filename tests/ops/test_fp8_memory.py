"""Working memory of fxrewrite::fp8_linear: the weight is never copied."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fxrewrite.ops

pytestmark = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")

# In a process of its own, whose peak nothing before has raised.
_SCRIPT = """
import resource, sys, torch
import fxrewrite.ops
torch.set_num_threads(1)
m, dtype, block = int(sys.argv[1]), getattr(torch, sys.argv[2]), eval(sys.argv[3])
n = k = 4096
scale = torch.ones(n // block[0], k // block[1]) if block else torch.ones(())
weight = torch.zeros(n, k, dtype=torch.uint8).view(torch.float8_e4m3fn)
x = torch.ones(m, k, dtype=dtype)
op = torch.ops.fxrewrite.fp8_linear
op(x[:1, :64].contiguous(), weight[:16, :64].contiguous(), None, None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = op(x, weight, scale, None, block)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(peak * 1024 - out.nbytes)
"""


@pytest.mark.parametrize("block", [None, [128, 128], [1, 128]])
@pytest.mark.parametrize(
    ("m", "dtype"), [(1, "bfloat16"), (16, "bfloat16"), (256, "bfloat16"), (16, "float32")]
)
def test_working_memory(m, dtype, block):
    """Beyond weight, activations and result: at most 4 MiB. (A decoded weight would be 32 MiB.)"""
    command = [sys.executable, "-c", _SCRIPT, str(m), dtype, repr(block)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 4 << 20
