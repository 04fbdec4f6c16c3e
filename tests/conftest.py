"""Fixtures of all tests. A fault inside the pass fails the test that met it."""

import os

os.environ.setdefault("FXREWRITE_STRICT", "1")

from tests.support.graphs import any_kernel  # noqa: F401
