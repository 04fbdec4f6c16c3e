"""Versions of installed packages, asked without importing them."""

from __future__ import annotations

import importlib.metadata


def version_of(package: str) -> str:
    """The version of an installed package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
