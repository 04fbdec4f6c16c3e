"""The algebra of views, against real tensors: any chain of rearrangements is one View."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from fxrewrite.matching.transparent import rearranged
from fxrewrite.matching.value import View, apply_dims, plain, through_broadcast
from tests.support.graphs import returned, trace


def tensor(*shape):
    size = torch.Size(shape).numel()
    return torch.arange(float(size)).reshape(shape)


def unwind(view: View) -> View:
    while (inner := rearranged(view)) is not None:
        view = inner
    return view


@st.composite
def chains(draw):
    """A shape, and a chain of rearrangements as (name, arguments)."""
    shape = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4))
    sizes, steps = list(shape), []
    for _ in range(draw(st.integers(1, 5))):
        rank = len(sizes)
        signed = lambda d, n: draw(st.sampled_from([d, d - n]))  # noqa: E731
        options = ["permute", "unsqueeze", "movedim", "swapaxes", "transpose"]
        ones = [d for d in range(rank) if sizes[d] == 1]
        options += ["squeeze", "squeeze many", "squeeze nothing"] if ones and rank > 1 else []
        options += ["mT"] if rank >= 2 else []
        options += ["t"] if rank == 2 else []
        name = draw(st.sampled_from(options)) if rank else "unsqueeze"
        if name == "permute":
            order = draw(st.permutations(range(rank)))
            steps.append(("permute", [signed(d, rank) for d in order]))
            sizes = [sizes[d] for d in order]
        elif name == "unsqueeze":
            at = draw(st.integers(0, rank))
            steps.append(("unsqueeze", signed(at, rank + 1)))
            sizes.insert(at, 1)
        elif name in ("swapaxes", "transpose", "movedim"):
            a, b = draw(st.integers(0, rank - 1)), draw(st.integers(0, rank - 1))
            steps.append((name, signed(a, rank), signed(b, rank)))
            if name == "movedim":
                sizes.insert(b, sizes.pop(a))
            else:
                sizes[a], sizes[b] = sizes[b], sizes[a]
        elif name == "squeeze":
            gone = draw(st.sampled_from(ones))
            steps.append(("squeeze", signed(gone, rank)))
            del sizes[gone]
        elif name == "squeeze many":
            gone = draw(st.sets(st.integers(0, rank - 1), min_size=1))
            steps.append(("squeeze", tuple(signed(d, rank) for d in gone)))
            sizes = [s for d, s in enumerate(sizes) if not (d in gone and s == 1)]
        elif name == "squeeze nothing":
            kept = [d for d in range(rank) if sizes[d] != 1]
            if kept:
                steps.append(("squeeze", kept[0]))
        else:
            steps.append((name,))
            sizes[-1], sizes[-2] = sizes[-2], sizes[-1]
    return shape, steps


def apply_chain(x, steps):
    for name, *arguments in steps:
        x = x.mT if name == "mT" else getattr(x, name)(*arguments)
    return x


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(chains())
def test_a_chain_is_one_view(chain):
    shape, steps = chain
    x = tensor(*shape)
    gm = trace(lambda x: apply_chain(x, steps), x)
    view = unwind(plain(returned(gm)))
    assert view.node.op == "placeholder"
    wanted = apply_chain(x, steps)
    assert tuple(view.shape) == tuple(wanted.shape)
    assert torch.equal(apply_dims(x, view.dims), wanted)
    assert view.val.shape == wanted.shape
    strides = zip(wanted.shape, view.val.stride(), wanted.stride(), strict=True)
    assert all(ours == theirs for size, ours, theirs in strides if size > 1)


def graph_node(*shape) -> fx.Node:
    return next(iter(trace(lambda x: x + 1, tensor(*shape)).graph.nodes))


def test_pick_composes():
    item = graph_node(2, 3, 4)
    view = plain(item).pick([2, None, 0, 1])
    assert view.dims == (2, None, 0, 1)
    assert view.pick([1, 3, 0, 2, None]).dims == (None, 1, 2, 0, None)
    assert view.mT.dims == (2, None, 1, 0)
    assert view.mT.mT == view
    assert view.rank == 4
    assert view.shape == (4, 1, 2, 3)


def test_plain():
    item = graph_node(2, 3)
    assert plain(item).is_plain
    assert not plain(item).mT.is_plain
    assert not plain(item).pick([None, 0, 1]).is_plain
    assert not View(graph_node(2, 1), (0,)).is_plain


def test_dropped_dims_are_squeezed():
    x = tensor(2, 1, 3)
    assert torch.equal(apply_dims(x, (2, 0)), x.squeeze(1).T)
    assert apply_dims(tensor(1), ()).shape == ()
    assert apply_dims(torch.tensor(3.0), (None, None)).shape == (1, 1)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_through_broadcast(data):
    """An operand, seen through the output's view, broadcasts to what the view shows of the output."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4))
    rank = len(sizes)
    own = [data.draw(st.sampled_from([1, s])) for s in sizes[data.draw(st.integers(0, rank)) :]]
    order = data.draw(st.permutations(range(rank)))
    dims = [d for d in order if sizes[d] != 1 or data.draw(st.booleans())]
    if data.draw(st.booleans()):
        dims.insert(data.draw(st.integers(0, len(dims))), None)
    x = tensor(*own)
    item = graph_node(*own)
    seen = through_broadcast(item, tuple(dims), rank)
    wanted = apply_dims(x.expand(sizes), dims)
    assert torch.equal(apply_dims(x, seen.dims).expand(wanted.shape), wanted)


def test_numbers_pass_through_broadcast():
    assert through_broadcast(3, (0, 1), 2) == 3
    assert through_broadcast(None, (0, 1), 2) is None
