"""The command line: one module for each command, imported when it is called."""

import importlib
from typing import Any

import click

from protocols.cli.failures import CommandError, leaves

_COMMANDS = (
    *("serve", "demo", "provision", "user", "simulate"),
    *("tail", "history", "type", "plans", "payments", "statistics"),
)
_INTERRUPTED = 130  # as shells report it


class _Commands(click.Group):
    """Imports only the command that is asked for: a simulated device needs no web server in its memory."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"protocols.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            click.echo(f"trunkline: {error}", err=True)
            ctx.exit(error.status)
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            if not any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
                raise
            ctx.exit(_INTERRUPTED)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trunkline")
def main() -> None:
    """Trunkline, a device data cloud in one process."""
