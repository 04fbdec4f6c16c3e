"""Functions that Dynamo starts in, with code of their own."""

from __future__ import annotations

import copy
import types

import torch
from torch import nn

from fxrewrite import capture

from .net import Net, X

aten = torch.ops.aten


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
