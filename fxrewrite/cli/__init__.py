"""The command line: ``fxrewrite sites|verify|bench|rules|doctor``, a file a command."""

from __future__ import annotations

import click

from ..garbage import collect_no_more
from .bench import bench
from .doctor import doctor
from .errors import OneLineErrors
from .rules import rules
from .sites import sites
from .verify import verify
from .versions import version_of

__all__ = ["main", "run"]


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"fxrewrite {version_of('fxrewrite')} (torch {version_of('torch')})")
        context.exit()


@click.group(cls=OneLineErrors, no_args_is_help=False)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it."
)
def main() -> None:
    """Find what fxrewrite would rewrite in a PyTorch model, and why it would leave the rest."""


for _command in (sites, verify, bench, rules, doctor):
    main.add_command(_command)


def run() -> None:
    """What the console script does: ``main``, and the end of the process."""
    try:
        main()
    finally:
        collect_no_more()
