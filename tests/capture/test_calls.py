"""Functions that Dynamo starts in, with code of their own."""

from __future__ import annotations

import copy
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxrewrite import capture

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.plain = torch.ones(8)
        self.listed = {"deep": [torch.full((8,), 2.0)]}

    def forward(self, x, flag=True):
        y = F.scaled_dot_product_attention(self.a(x), self.b(x), x)
        return (y * self.plain + self.listed["deep"][0]).softmax(-1) if flag else y


X = torch.randn(2, 3, 8)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_with_own_code():
    net = Net()
    one, other = capture.with_own_code(net.forward), capture.with_own_code(net.forward)
    assert isinstance(one, types.MethodType)
    assert one.__self__ is net
    codes = {id(one.__func__.__code__), id(other.__func__.__code__), id(Net.forward.__code__)}
    assert len(codes) == 3
    assert torch.equal(one(X), net(X))
    assert torch.equal(one(X, flag=False), net(X, False))


def test_with_own_code_keeps_defaults_and_closures():
    factor = 3

    def function(x, *, plus=2):
        return x * factor + plus

    clone = capture.with_own_code(function)
    assert clone(1) == 5
    assert clone(1, plus=0) == 3
    assert clone.__code__ is not function.__code__


def test_with_own_code_starts_outside_torch():
    sequential = nn.Sequential(nn.Linear(8, 8))
    started = capture.with_own_code(sequential.forward)
    assert not started.__code__.co_filename.startswith(torch.__path__[0])
    assert torch.equal(started(X), sequential(X))
    assert copy.deepcopy(sequential)(X).shape == X.shape
