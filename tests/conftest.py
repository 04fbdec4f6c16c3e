from tests.support.graphs import any_kernel  # noqa: F401
