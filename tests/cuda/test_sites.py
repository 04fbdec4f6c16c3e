"""Models on (fake) CUDA tensors: the same sites as on the CPU, with CUDA implementations."""

from __future__ import annotations

import pytest

from tests.models.params import models
from tests.support.devices import CUDA_KERNELS, counted, on_fake, sites


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
        assert site.reason or site.implementation in CUDA_KERNELS
        assert "is on cuda" not in site.reason
        assert all(refusal.implementation in CUDA_KERNELS for refusal in site.refusals)
