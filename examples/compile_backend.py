"""``torch.compile(model, backend="fxrewrite")``: found by name, nothing of ours imported.

What is left of the graph goes on to Inductor; ``options={"then": "eager"}`` stops before it.
"""

import torch
from torch import nn


class Attention(nn.Module):
    """Softmax attention, written out."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, dim))


def main() -> None:
    torch.manual_seed(0)
    model = Attention(256, 4).to(torch.bfloat16).eval()
    compiled = torch.compile(model, backend="fxrewrite", options={"then": "eager"})
    with torch.no_grad():
        for tokens in (64, 100, 17):  # one compilation for all lengths, after the second
            x = torch.randn(2, tokens, 256, dtype=torch.bfloat16)
            print(f"{tokens:4} tokens: largest difference {(compiled(x) - model(x)).abs().max().item():.3g}")


if __name__ == "__main__":
    main()
