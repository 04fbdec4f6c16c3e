"""``python -m fxrewrite``: the command line."""

from .cli import run

run()
