"""Models on (fake) CUDA tensors: the same sites as on the CPU, with CUDA implementations."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import fxrewrite
from tests.models.params import models
from tests.support.devices import on_fake

KERNELS = {"cuda:stream", "cuda:decode", "cuda:tokens", "cuda:channels", "cuda:framework"}


def sites(model, args, kwargs) -> list[fxrewrite.report.Site]:
    torch._dynamo.reset()
    with torch.no_grad():
        return fxrewrite.analyze(model, args, kwargs).sites


def counted(found) -> Counter[tuple]:
    """Sites by what they compute. Of a layer, what follows it is in the site only if a kernel takes it too."""
    main = {"linear": ("weight",), "fp8_matmul": ("weight",)}
    return Counter(
        (site.kind, *(text for name, text in site.operands.items() if name in main.get(site.kind, (name,))))
        for site in found
    )


@models()
def test_the_sites_are_those_of_the_cpu(fake_cuda, model):
    built = model.make()
    try:
        twin = on_fake("cuda", *built)
    except TypeError as subclass:
        pytest.skip(str(subclass))
    here, there = sites(*built), sites(*twin)
    assert counted(here) == counted(there)
    for site in there:
        assert site.reason or site.implementation in KERNELS
        assert "is on cuda" not in site.reason
        assert all(refusal.implementation in KERNELS for refusal in site.refusals)
