"""The work of a graph, against torch's own count of the same call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fxrewrite

x, y = torch.randn(2, 6, 8), torch.randn(2, 8, 5)


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (F.linear, (x, torch.randn(7, 8))),
        (F.linear, (x[0, 0], torch.randn(7, 8))),
        (torch.matmul, (x, y)),
        (torch.matmul, (x[:, None], y[None])),
        (torch.bmm, (x, y)),
        (torch.mm, (x[0], y[0])),
        (torch.addmm, (torch.randn(5), x[0], y[0])),
        (torch.baddbmm, (torch.randn(2, 6, 5), x, y)),
        (lambda a, b: torch.einsum("bij, bjk -> bik", a, b), (x, y)),
        (lambda a, b: torch.einsum("bij,bkj->bki", a, b), (x, y.mT)),
        (F.conv2d, (torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3))),
        (lambda a, b: F.conv2d(a, b, groups=2, stride=2), (torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3))),
        (F.conv1d, (torch.randn(2, 4, 9), torch.randn(6, 4, 3))),
        (F.conv_transpose2d, (torch.randn(2, 4, 5, 5), torch.randn(4, 6, 3, 3))),
        (lambda a, b: a * 2 + b, (x, x)),
    ],
)
def test_the_count_is_torchs(function, args):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*args)
    with torch.no_grad():
        assert fxrewrite.analyze(Call(function), args).work == counter.get_total_flops()


@pytest.mark.parametrize("groups", [1, 2])
def test_fused_attention_is_two_products(groups):
    q, k, v = (torch.randn(2, h, n, 16) for h, n in ((4, 10), (4 // groups, 12), (4 // groups, 12)))
    model = Call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=groups > 1))
    with torch.no_grad():
        report = fxrewrite.analyze(model, (q, k, v))
    assert report.work == 2 * (2 * 4 * 10 * 12 * 16) * 2
    assert [site.work for site in report.sites] == [report.work]


def test_a_site_has_its_part_of_the_work_and_its_code():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(self.inner(x).mT @ x).real

    with torch.no_grad():
        report = fxrewrite.analyze(Two(), (torch.randn(32, 32),))
    site = next(s for s in report.sites if s.module == "inner")
    assert (site.work, site.flops) == (2 * 32 * 32 * 16, str(2 * 32 * 32 * 16))
    assert site.bytes == 4 * (32 * 32 + 16 * 32 + 16 + 32 * 16)
    assert [o.text for o in site.operations] == ["linear = aten.linear.default(x, weight, bias)"]
    assert site.operations[0].location == site.location
    assert report.work == 2 * 32 * 32 * 16 + 2 * 16 * 32 * 32


def test_a_symbolic_size_is_named_and_counted_as_it_was():
    class Free(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Free(), (torch.randn(8, 32),), dynamic_shapes=({0: batch},))
    (site,) = fxrewrite.analyze(program).sites
    assert site.work == 2 * 8 * 32 * 16
    assert site.flops.startswith("1024*s")
    assert site.bytes == 4 * (8 * 32 + 16 * 32 + 16 + 8 * 16)
