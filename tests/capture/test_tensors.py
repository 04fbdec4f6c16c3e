"""Which tensors a model holds, and copies that share them."""

from __future__ import annotations

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
