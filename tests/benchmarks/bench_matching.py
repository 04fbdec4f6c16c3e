"""What matching and proving cost: a transformer of 6, 24 and 96 layers, against its capture.

    python -m tests.benchmarks.bench_matching

Prints, for each depth, the nodes of the graph, the CPU seconds of Dynamo, of the ATen capture and of
matching, proving and rewriting, the share of the last in the first two, and the microseconds a node.
"""

from __future__ import annotations

import time

import torch
from torch import fx, nn

from fxrewrite import capture
from fxrewrite.backend import default_rules
from fxrewrite.rewriting import make_options, rewrite_graph

DEPTHS = (6, 24, 96)


class Layer(nn.Module):
    """A decoder layer: grouped heads, rotary embeddings, RMS norm, a gated feed-forward."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h = self.norm_1(x)
        q = _rotated(self.q(h).unflatten(-1, (self.heads, -1)).transpose(1, 2), cos, sin)
        k = _rotated(self.k(h).unflatten(-1, (self.groups, -1)).transpose(1, 2), cos, sin)
        v = self.v(h).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        length = x.shape[1]
        seen = torch.arange(length)[None, :] <= torch.arange(length)[:, None]
        scores = (q @ k.mT * self.size**-0.5).masked_fill(~seen, float("-inf"))
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        h = self.norm_2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Model(nn.Module):
    def __init__(self, depth: int, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, 4, 2) for _ in range(depth))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def measure(depth: int) -> str:
    """One line of the table."""
    model = Model(depth).eval().to(torch.bfloat16)
    x = torch.randn(1, 32, 256, dtype=torch.bfloat16)
    cos, sin = torch.randn(2, 32, 64, dtype=torch.bfloat16)
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, _: object) -> object:
        graphs.append(gm)
        return gm.forward

    with torch.no_grad():
        torch._dynamo.reset()
        started = time.process_time()
        torch.compile(model, backend=keep)(x, cos, sin)
        dynamo = time.process_time() - started
        started = time.process_time()
        gm = capture.from_dynamo(graphs[0])
        aten = time.process_time() - started
        nodes = len(gm.graph.nodes)
        options = make_options({})
        started = time.process_time()
        found = rewrite_graph(gm, default_rules(options), options, "g", grad_enabled=False)
        ours = time.process_time() - started
    matched = sum(site.matched for site in found.sites)
    return (
        f"{depth:6} {nodes:6} {dynamo:8.2f} {aten:8.2f} {ours:8.2f} {100 * ours / (dynamo + aten):6.1f} %"
        f" {1e6 * ours / nodes:8.0f} {matched:5}/{len(found.sites)}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure(1)  # imports, and the first uses of everything
    print("layers  nodes   Dynamo     ATen     ours   share  us/node  matched")
    for layers in DEPTHS:
        print(measure(layers))
