"""A model with tied weights, and tensors that are neither parameters nor buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


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
