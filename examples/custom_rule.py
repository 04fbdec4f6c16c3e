"""A rule of one's own, in 15 lines: LoRA's two small products are merged into the large one.

A layer computes x·Wᵀ + (x·Aᵀ)·Bᵀ. With the sum of the weights it is one product.
"""

import torch
from fxrewrite.patterns import DEFAULT
from torch import nn

import fxrewrite
from fxrewrite.guards import same_dtype


class MergeLora(fxrewrite.Rule):
    kind = "linear"

    def pattern(self, op, x, weight, down, up):
        return op.linear(x, weight, None) + op.linear(op.linear(x, down, None), up, None)

    def guards(self, m):
        yield same_dtype({name: m[name] for name in ("x", "weight", "down", "up")})

    def replace(self, op, m):
        merged = op.aten.add.Tensor(m["weight"], op.aten.mm(m["up"], m["down"]))
        return op.fxrewrite.linear(m["x"], merged, None)


class LoraLinear(nn.Module):
    def __init__(self, inner: int, outer: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inner, outer, bias=False)
        self.down, self.up = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def main() -> None:
    torch.manual_seed(0)
    model = LoraLinear(256, 128, 8).to(torch.bfloat16).eval()
    x = torch.randn(4, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        fast = fxrewrite.rewrite(model, (x,), rules=[MergeLora(), *DEFAULT])
        difference = (fast(x) - model(x)).abs().max().item()
    print(fast.report)
    print(f"largest difference to the original: {difference:.3g}")


if __name__ == "__main__":
    main()
