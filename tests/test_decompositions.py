"""What hides sites is written out: it must mean what the operator means, wholly masked rows included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxrewrite
from tests.support.contract import check


def _encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


X = torch.randn(2, 10, 64, generator=torch.Generator().manual_seed(1))
PADDED = torch.arange(10) >= torch.tensor([[10], [7]])
EMPTY = PADDED | (torch.arange(2) == 1)[:, None]
CAUSAL = torch.ones(10, 10, dtype=torch.bool).triu(1)
CALLS = {
    "no mask": {},
    "padding": {"src_key_padding_mask": PADDED},
    "causal": {"mask": CAUSAL, "is_causal": False},
    "causal, added": {"mask": torch.zeros(10, 10).masked_fill(CAUSAL, float("-inf")), "is_causal": True},
    "both": {"mask": CAUSAL, "src_key_padding_mask": PADDED, "is_causal": False},
    "nothing to attend to": {"src_key_padding_mask": EMPTY},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize(
    "options",
    [{}, {"norm_first": True, "activation": "gelu"}],
    ids=["relu, norm last", "gelu, norm first"],
)
def test_encoder_layers_are_rewritten(options, call):
    model = _encoder(**options)
    with torch.no_grad():
        expected = model(X, **call)
        exact = _encoder(**options).double()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            reference = exact(
                X.double(),
                **{n: v.double() if getattr(v, "dtype", 0) == torch.float32 else v for n, v in call.items()},
            )
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        report = fxrewrite.analyze(model, (X,), call)
        assert len(report.matched) == len(report.sites) == 10, report.summary()
        found = fxrewrite.rewrite(model)(X, **call)
    assert torch.equal(found.isnan(), expected.isnan())
    seen = ~expected.isnan().any(-1)
    check(found[seen], expected[seen], reference[seen])
