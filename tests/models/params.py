"""One test a model: quick ones unmarked, the long tail marked slow, skipped where a package is missing."""

import pytest

from . import MODELS


def _parameters(names):
    for name in names:
        model, marks = MODELS[name], []
        if not model.quick:
            marks.append(pytest.mark.slow)
        if model.missing():
            marks.append(pytest.mark.skip(reason=f"{model.missing()} is not installed"))
        yield pytest.param(model, id=name, marks=marks)


def models(condition=lambda model: True):
    """Parametrise a test's ``model`` argument over the models that meet a condition."""
    return pytest.mark.parametrize("model", list(_parameters(n for n, m in MODELS.items() if condition(m))))


each_model = models()
