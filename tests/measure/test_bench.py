"""The benchmark's parts; no test asserts a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fxrewrite.errors import FxrewriteError
from fxrewrite.measure.bench import EAGER, OURS, Times, bench
from tests.support.graphs import any_kernel

__all__ = ["any_kernel"]


class Layers(nn.Module):
    """Three equal linears and another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.out = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.out(x)


def test_statistics():
    times = Times([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (times.median, times.least) == (3.0, 1.0)
    assert math.isclose(times.spread, 2.0 / 3.0)
    assert Times([1.0]).spread == 0.0


@pytest.mark.usefixtures("any_kernel")
def test_all_sides_and_sites():
    said = []
    model, x = Layers().to(torch.bfloat16).eval(), torch.randn(4, 32, dtype=torch.bfloat16)
    done = bench(model, (x,), rounds=3, inductor=False, tell=said.append)
    assert {name: len(t.seconds) for name, t in done.times.items()} == {EAGER: 3, OURS: 3}
    assert done.problem == ""
    assert 0 < done.errors[EAGER] < 0.05
    assert 0 < done.errors[OURS] < 0.05
    assert sorted((entry.count, entry.site.kind) for entry in done.sites) == [(1, "linear"), (3, "linear")]
    assert all(len(t.seconds) == 3 for entry in done.sites for t in entry.times.values())
    assert "end to end" in said


@pytest.mark.slow
@pytest.mark.usefixtures("any_kernel")
def test_with_inductor_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from fxrewrite.measure.plot import draw

    done = bench(Layers().eval(), (torch.randn(4, 32),), rounds=2)
    assert list(done.times) == ["eager", "inductor", "fxrewrite"]
    assert list(done.sites[0].times) == ["eager", "inductor", "fxrewrite"]
    draw(done, "layers", str(tmp_path / "times.png"))
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FxrewriteError, match="cannot be written"):
        draw(done, "layers", str(tmp_path / "absent" / "times.png"))


@pytest.mark.usefixtures("any_kernel")
def test_a_model_without_a_float64_run_says_so():
    class Stubborn(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype == torch.float64:
                raise TypeError("float32 only")
            return super().forward(x)

    done = bench(Stubborn().eval(), (torch.randn(4, 32),), rounds=1, inductor=False)
    assert done.errors == {}
    assert done.problem == "TypeError: float32 only"
