"""Rewritten programs and models that leave the process: packages, compile caches, a missing library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fxrewrite
from tests.support.block import block, right, tokens

ROOT = Path(fxrewrite.__path__[0]).parent


def python(code: str, *arguments: str, **environment: str) -> str:
    """What a fresh interpreter prints for ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


LOAD = """
import sys, torch, fxrewrite
x, want = torch.load(sys.argv[2])
assert torch.equal(torch._inductor.aoti_load_package(sys.argv[1])(x), want), "other numbers"
from fxrewrite.ops.counters import counters
print(sorted(counters()))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_an_aotinductor_package_runs_in_a_fresh_process(tmp_path):
    plain, length = block(), torch.export.Dim("length", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(plain, (tokens(),), dynamic_shapes=({1: length},))
        fast = fxrewrite.rewrite(program)
        assert len(fast.report.matched) == 3
        package = torch._inductor.aoti_compile_and_package(fast, package_path=str(tmp_path / "block.pt2"))
        run = torch._inductor.aoti_load_package(package)
        for tokens_ in (tokens(), tokens(2, 9)):
            right(run, plain, tokens_)
        torch.save((tokens(), run(tokens())), tmp_path / "io.pt")
    ran = python(LOAD, package, str(tmp_path / "io.pt"))
    assert ran == ("['linear', 'sdpa']\n" if fxrewrite.ops.native_missing is None else "[]\n")


@pytest.mark.slow
def test_inductor_and_eager_give_the_same_numbers():
    fast = [fxrewrite.rewrite(block(), then=then) for then in ("eager", "inductor")]
    with torch.no_grad():
        for x in (tokens(), tokens(3, 9), tokens(1, 1)):
            assert torch.equal(fast[0](x), fast[1](x))


CACHED = """
import torch, fxrewrite
fxrewrite.__version__ = {version!r}
from torch._dynamo.utils import counters
from tests.support.block import block, right, tokens
right(torch.compile(block(), backend="fxrewrite"), block())
print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
"""


@pytest.mark.slow
def test_compile_caches_hit_on_a_second_start_and_never_for_another_version(tmp_path):
    starts = [
        python(CACHED.format(version=version), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
        for version in ("1.0", "1.0", "2.0", "1.0")
    ]
    assert [int(hits) > 0 for hits in starts] == [False, True, False, True]
