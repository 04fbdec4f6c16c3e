"""Every counted site is in the report, matched or rejected with a reason."""

import functools

import torch

from tests.support.subject import site_counts

from .params import models


@functools.cache
def _report(model):
    import fxrewrite

    built, args, kwargs = model.make()
    with torch.no_grad():
        torch._dynamo.reset()
        return fxrewrite.rewrite(built, args, kwargs).report


def _found(report, kind):
    return sum(site_counts(report)[kind].values())


@models()
def test_sites_are_found(model):
    report, want = _report(model), model.sites
    found = {kind: sum(counts.values()) for kind, counts in site_counts(report).items()}
    if want.opaque and want.opaque in " ".join([*report.notes, *(s.reason for s in report.sites)]):
        return  # the operator that hides the sites is named
    assert found["sdpa"] >= want.fused, "fused attention calls"
    assert found["linear"] + found["fp8_matmul"] >= want.linear, "linear layers"
    missing = {
        "hand-written attention": want.fused + want.manual - found["sdpa"],
        "fp8 products": want.fp8 - found["fp8_matmul"],
        "linear attention": want.linear_attention - found["linear_attention"],
    }
    assert not {what: n for what, n in missing.items() if n > 0}


@models(lambda model: "negative" in model.name or not (model.sites.fused or model.sites.manual))
def test_nothing_is_matched_that_is_no_site(model):
    """Look-alikes may be reported as rejected; none may be matched."""
    matched = {kind: counts["matched"] for kind, counts in site_counts(_report(model)).items()}
    sites = model.sites
    if "negative" in model.name and "probabilities" not in model.name:
        assert matched["sdpa"] == 0
        assert matched["linear_attention"] == 0
    assert matched["sdpa"] <= sites.fused + sites.manual
    assert matched["fp8_matmul"] <= sites.fp8
    assert matched["linear_attention"] <= sites.linear_attention


@models()
def test_rejections_say_why(model):
    for site in _report(model).sites:
        assert site.status in ("matched", "rejected")
        assert site.status == "matched" or site.reason.strip(), site
