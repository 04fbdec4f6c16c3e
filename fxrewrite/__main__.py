"""``python -m fxrewrite``: the command line."""

from .cli import main

main()
