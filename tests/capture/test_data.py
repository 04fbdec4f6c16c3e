"""``x.data``, which tracers do not see: positions that a model writes through it, weights that it reads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxrewrite
from fxrewrite import capture
from fxrewrite.errors import CaptureError
from tests.support.graphs import dynamo_graphs


class Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("positions", torch.randn(1, 8, 64))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def positions_behind_text(self, x):
    both = self.positions.new_zeros(1, 16, 64, requires_grad=False)
    both.data[:, 8:].copy_(self.positions)
    return self.linear(x + both)


def written_input(self, x):
    x.data.mul_(2)
    return self.linear(x)


def written_buffer(self, x):
    self.positions.data.copy_(x[:, :8] * 3)
    return self.linear(self.positions)


def written_weight(self, x):
    self.linear.weight.data.mul_(1.5)
    return self.linear(x)


def written_result(self, x):
    y = self.linear(x)
    z = y.data
    z.add_(1)
    return y, z


def read_after_a_write(self, x):
    y = self.linear(x)
    z = y.data
    y.add_(1)
    return self.linear(z)


def read_weight(self, x):
    return x @ self.linear.weight.data.t()


def replaced(self, x):
    y = self.linear(x)
    y.data = self.linear(y).data
    return self.linear(y)


FUNCTIONS = [
    *(positions_behind_text, written_input, written_buffer, written_weight, written_result),
    *(read_after_a_write, read_weight, replaced),
]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_without_gradients_it_is_the_tensor(function, mode):
    torch.compiler.reset()
    with mode():
        eager, x = Layer(function).double(), torch.randn(1, 16, 64)
        ours, y = copy.deepcopy(eager).float(), x.clone()
        x = x.double()
        wanted, found = eager(x), fxrewrite.rewrite(ours)(y)
        torch.testing.assert_close(found, wanted, check_dtype=False)
        torch.testing.assert_close(y, x, check_dtype=False)  # written to as eager does
        for name, value in eager.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, check_dtype=False)
        assert fxrewrite.analyze(ours, (y,)).matched


def test_with_gradients_the_graph_is_left():
    """Where a gradient is recorded, writing through ``.data`` is allowed and through ``.detach()`` an error."""
    with torch.no_grad():
        (gm,) = dynamo_graphs(Layer(positions_behind_text), torch.randn(1, 16, 64))
    with pytest.raises(CaptureError, match=r"as `\.data` does"):
        capture.from_dynamo(gm)
    with torch.no_grad():
        capture.from_dynamo(gm)
