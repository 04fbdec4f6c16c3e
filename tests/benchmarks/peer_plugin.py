"""fxrewrite as a plugin of ``peer_ops.py``, the benchmark of peers: ``peer_ops.py --plugin THIS_FILE``.

Each case's subgraph is captured as a model's would be and rewritten with the default rules; what is
timed is the rewritten graph. A case that is not rewritten is skipped, with the report's reason. The case
"sanavideo" begins behind the ReLU by which the rule knows its features: there the operator is called.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import peer_ops  # the benchmark registers itself under this name
from fxrewrite.patterns import DEFAULT

from fxrewrite import capture
from fxrewrite.rewriting import Options, rewrite_graph


@peer_ops.impl(["sanavideo"], "fxrewrite", group="torch")
def called(case: Any, tensors: dict[str, Any]) -> Any:
    q, k, turned_q, turned_k, v = (tensors[name].transpose(1, 2) for name in ("q", "k", "qr", "kr", "v"))

    def call() -> Any:
        out = torch.ops.fxrewrite.relu_linear_attention(
            turned_q, turned_k, v, q, k, eps=1e-15, relu=False, channel_major=True
        )
        return out.mT.flatten(1, 2).transpose(1, 2)

    return call


@peer_ops.impl(["linear", "sdpa", "fp8", "sanavideo_full", "sana"], "fxrewrite", group="torch")
def rewritten(case: Any, tensors: dict[str, Any]) -> Any:
    function, constants, inputs = peer_ops._subgraph(case, tensors)
    named = {n: v for n, v in {**constants, **inputs}.items() if v is not None}

    def positional(*values: Any) -> Any:
        return function(**dict(zip(named, values, strict=True)))

    values = tuple(named.values())
    with torch.no_grad():
        graph = capture.canonical_graph(make_fx(positional, pre_dispatch=True, tracing_mode="fake")(*values))
    sites = rewrite_graph(graph, DEFAULT, Options(), case.name, grad_enabled=False).sites
    if not any(site.matched for site in sites):
        raise peer_ops.Skip("; ".join(f"{site.kind}: {site.reason}" for site in sites) or "no site")
    return lambda: graph(*values)
