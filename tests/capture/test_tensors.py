"""Which tensors a model holds, and copies that share them."""

from __future__ import annotations

import torch

from fxrewrite import capture

from .net import Net

aten = torch.ops.aten


def test_reachable_tensors():
    net = Net()
    found = {id(t) for t in capture.reachable_tensors(net)}
    for tensor in (net.a.weight, net.a.bias, net.plain, net.listed["deep"][0]):
        assert id(tensor) in found


def test_copy_sharing_tensors():
    net = Net()
    twin = capture.copy_sharing_tensors(net)
    assert twin.a is not net.a
    assert twin.a.weight is net.a.weight is twin.b.weight
    assert twin.listed is not net.listed
    assert twin.listed["deep"][0] is net.listed["deep"][0]


# ------------------------------------------------------------------------------------------- own code
