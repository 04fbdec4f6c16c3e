"""Casts of a quotient that come after it was reshaped, moved before: the same bits, half as much to move.

Attention written out ends in ``out.flatten(1, 2).transpose(1, 2).to(dtype)``. Behind the division itself the
cast is part of what a rule replaces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from ..matching import Aliasing
from ..matching.terms import CASTS, RESHAPES, readings
from ..matching.transparent import float_cast, rearranged
from ..matching.value import is_tensor, plain

aten = torch.ops.aten


def hoist_narrowing_casts(gm: fx.GraphModule) -> None:
    """Move each cast to a narrower float type up to the division that it is of, in place."""
    candidates = [(node, chain) for node in gm.graph.nodes if (chain := _moved_by(node))]
    if not candidates:
        return
    aliasing = Aliasing(gm.graph)
    for cast, chain in candidates:
        source: Any = chain[-1].args[0]
        if not any(map(aliasing.is_mutated, (cast, *chain, source))):
            _hoist(gm.graph, cast, chain, source)
    gm.recompile()


def _moved_by(cast: Any) -> list[Any]:
    """What only moves a quotient before ``cast`` narrows it, last first; nothing where it is not so."""
    if cast.target not in CASTS or float_cast(plain(cast)) is None:
        return []
    source = cast.args[0]
    wide, narrow = source.meta["val"].dtype, cast.meta["val"].dtype
    if wide == narrow or torch.promote_types(wide, narrow) != wide:
        return []
    chain = []
    while len(source.users) == 1 and _only_moves(source):
        chain.append(source)
        source = source.args[0]
    is_quotient = len(source.users) == 1 and any(term.op == "div" for term in readings(plain(source)))
    return chain if is_quotient else []


def _only_moves(node: Any) -> bool:
    if node.op != "call_function" or not node.args or not is_tensor(node.args[0]):
        return False
    return node.target in RESHAPES or rearranged(plain(node)) is not None


def _hoist(graph: fx.Graph, cast: Any, chain: list[Any], source: Any) -> None:
    narrow, value = cast.meta["val"], source.meta["val"].to(cast.meta["val"].dtype)
    values = [value]
    for node in reversed(chain):
        args, named = fx.map_arg((node.args[1:], node.kwargs), lambda n: n.meta["val"])
        value = node.target(value, *args, **named)
        values.append(value)
    same = zip(value.stride(), narrow.stride(), strict=True)
    if any(prove_equal(a, b, "").verdict is not Verdict.PROVED for a, b in same):
        return
    with graph.inserting_after(source):
        moved = graph.call_function(aten.to.dtype, (source, narrow.dtype))
    moved.meta.update(cast.meta)
    chain[-1].replace_input_with(source, moved)
    for node, changed in zip((moved, *reversed(chain)), values, strict=True):
        node.meta["val"] = changed
    cast.replace_all_uses_with(chain[0])
    graph.erase_node(cast)
