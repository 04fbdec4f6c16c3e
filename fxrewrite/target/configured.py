"""What a model's configuration says, under the names that libraries give it."""

from __future__ import annotations

from typing import Any


def value_of(config: Any, name: str) -> Any:
    """The value that a configuration of diffusers or transformers has under ``name``, or None."""
    return config.get(name) if hasattr(config, "get") else getattr(config, name, None)


def first_of(config: Any, names: tuple[str, ...], default: Any) -> Any:
    """The value under the first of ``names`` that has one, or ``default``."""
    return next((value for name in names if (value := value_of(config, name)) is not None), default)
