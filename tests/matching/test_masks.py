"""Masks: what lets everything through, what is causal, and what is neither, of fixed and symbolic sizes."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.matching import Aliasing
from fxrewrite.matching.masks import ALL, CAUSAL, Masks, Visible, _by_value
from fxrewrite.matching.value import plain
from tests.matching.test_formulas import _packed
from tests.support.graphs import returned, trace

LOW = torch.finfo(torch.float32).min
TRIL = torch.ones(4, 6, dtype=torch.bool).tril()


def _causal(x):
    return torch.arange(x.shape[1])[None, :] <= torch.arange(x.shape[0])[:, None]


def _distance(x):
    """How far before its row each column is."""
    return torch.arange(x.shape[0])[:, None] - torch.arange(x.shape[1])[None, :]


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (TRIL, CAUSAL),
        (TRIL.expand(2, 1, 4, 6), CAUSAL),
        (torch.where(TRIL, 0.0, LOW), CAUSAL),
        (torch.where(TRIL, 0.0, float("-inf")), CAUSAL),
        (torch.ones(1, 1, 1, 1, dtype=torch.bool), ALL),
        (torch.zeros(4, 6), ALL),
        (torch.full((4, 6), 2.5), ALL),
        (torch.full((4, 6), -1e9), None),  # swallows the scores
        (torch.ones(4, 6, dtype=torch.bool).tril(1), None),
        (torch.ones(4, 6, dtype=torch.bool).tril(2), None),  # aligned at the bottom right
        (TRIL.triu(-1), Visible(causal=True, window=2)),
        (torch.ones(4, 6, dtype=torch.bool).triu(-1).tril(1), Visible(window=2)),
        (torch.ones(4, 6, dtype=torch.bool).triu(-1).tril(2), None),
        (TRIL.triu(1), None),
        (torch.where(TRIL.triu(0), 0.0, LOW), Visible(causal=True, window=1)),
        (TRIL.logical_not(), None),
        (torch.where(TRIL, 0.0, -10000.0), None),  # a score could still win
        (torch.where(TRIL, 1.0, LOW), None),
        (torch.stack([TRIL, torch.ones(4, 6, dtype=torch.bool)]), None),
        (torch.full((4, 6), float("nan")), None),
    ],
)
def test_kinds_of_values(mask, kind):
    assert _by_value(mask, 4, 6, LOW / 2) == kind


FORMS = [
    (_causal, CAUSAL),
    (lambda x: ~_causal(x), None),
    (lambda x: _causal(x)[None, None].expand(2, 1, -1, -1), CAUSAL),
    (lambda x: torch.where(_causal(x), 0.0, LOW), CAUSAL),
    (lambda x: torch.where(_causal(x), 0.0, -10000.0), None),
    (lambda x: torch.full((x.shape[0], x.shape[1]), float("-inf")).triu(1), CAUSAL),
    (lambda x: torch.full((x.shape[0], x.shape[1]), float("-inf")).triu(2), None),
    (lambda x: (1.0 - _causal(x).float()) * LOW, CAUSAL),
    (lambda x: torch.zeros(x.shape[0], x.shape[1]).masked_fill(~_causal(x), LOW), CAUSAL),
    (lambda x: torch.arange(x.shape[1]) >= 0, ALL),
    (lambda x: torch.arange(x.shape[1]) < x.shape[1], ALL),
    (lambda x: torch.arange(x.shape[1]) < x.shape[1] - 1, None),
    (
        lambda x: torch.arange(x.shape[1])[None] <= torch.arange(x.shape[0])[:, None] + x.shape[1],
        ALL,
    ),
    (lambda x: _causal(x) | (torch.arange(x.shape[1]) > -1), ALL),
    (lambda x: _causal(x) & (torch.arange(x.shape[1]) != 2), None),
    (lambda x: torch.ones(x.shape[0], x.shape[1], dtype=torch.bool), ALL),
    (lambda x: torch.full((x.shape[0], x.shape[1]), -3.0), ALL),
    (lambda x: _causal(x) & (_distance(x) < 2), Visible(causal=True, window=2)),
    (lambda x: _causal(x) & (_distance(x) <= 2), Visible(causal=True, window=3)),
    (lambda x: (_distance(x) < 2) & (_distance(x) > -2), Visible(window=2)),
    (lambda x: (_distance(x) < 2) & (_distance(x) > -3), None),
    (lambda x: _distance(x) < 2, None),
    (lambda x: _causal(x) & (x > 0), None),
    (lambda x: x > 0, None),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_kinds_of_forms(form, kind, dynamic):
    # of equal sizes where that is needed to know that every row sees something
    window = kind is not None and kind.window > 0
    x = torch.zeros(5, 5) if window else torch.zeros(4, 6)
    gm = trace(form, x, dynamic=dynamic)
    rows, columns = next(n for n in gm.graph.nodes if n.op == "placeholder").meta["val"].shape
    masks = Masks(Aliasing(gm.graph))
    assert masks.visible(plain(returned(gm)), rows, columns, LOW / 2) == kind


def test_a_packed_sequence_of_plain_positions_is_causal():
    gm = trace(_packed, torch.zeros(5, 5), dynamic=True)
    size = next(n for n in gm.graph.nodes if n.op == "placeholder").meta["val"].shape[1]
    assert Masks(Aliasing(gm.graph)).visible(plain(returned(gm)), size, size, LOW / 2) == CAUSAL


def test_the_last_row_of_a_causal_mask_lets_everything_through():
    gm = trace(lambda x: torch.arange(x.shape[1]) <= x.shape[1] - 1, torch.zeros(4, 6), dynamic=True)
    columns = next(n for n in gm.graph.nodes if n.op == "placeholder").meta["val"].shape[1]
    assert Masks(Aliasing(gm.graph)).visible(plain(returned(gm)), 1, columns, LOW / 2) == ALL


def test_inverted():
    gm = trace(lambda x: ~_causal(x), torch.zeros(4, 6), dynamic=True)
    rows, columns = next(n for n in gm.graph.nodes if n.op == "placeholder").meta["val"].shape
    masks = Masks(Aliasing(gm.graph))
    assert masks.visible(plain(returned(gm)), rows, columns, LOW / 2, inverted=True) == CAUSAL
