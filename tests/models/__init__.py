"""Small real models with counted sites: what the repository tests the pass on, standing alone.

``MODELS[name].make()`` gives (model, args, kwargs). Library classes have small configurations of our own
and no downloaded weights; parameters are filled with non-degenerate values.
"""

from tests.support.modules import Registry

MODELS = Registry()

from . import attention, diffusion, fp8, language, linear_attention, native, vision  # noqa: E402, F401

__all__ = ["MODELS"]
