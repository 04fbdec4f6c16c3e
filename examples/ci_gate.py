"""A gate for CI: fail where a change of the model's code takes a site away that was matched before.

    python examples/ci_gate.py                      # compares with the counts below
    fxrewrite sites examples/ci_gate.py:model --fail-on rejected:sdpa
    fxrewrite sites examples/ci_gate.py:model --markdown >> "$GITHUB_STEP_SUMMARY"

The first compares found sites with what is expected; the command says the same by its exit code.
"""

import sys

import torch
from torch import nn

import fxrewrite

EXPECTED = {"sdpa": 2, "linear": 4}


class Block(nn.Module):
    """Attention, written out, between two linears."""

    def __init__(self, dim: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


def model():
    """(model, args), as ``fxrewrite sites`` takes it; the meta device is enough."""
    with torch.device("meta"):
        return nn.Sequential(Block(), Block()).to(torch.bfloat16).eval(), (
            torch.empty(1, 16, 128, dtype=torch.bfloat16),
        )


def main() -> int:
    with torch.no_grad():
        report = fxrewrite.analyze(*model())
    print(report.summary())
    found = {kind: counts.total() for kind, counts in report.counts().items()}
    unknown = [site for site in report.rejected if site.code.name == "STRUCTURE"]
    for site in unknown:
        print(f"not a known form any more: {site.location}: {site.source}: {site.reason}")
    if found != EXPECTED or unknown:
        print(f"expected {EXPECTED}, found {found}")
        return 1
    print("as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
