"""The command line. A command's module is imported when the command is called."""

import importlib
from typing import Any

import click

from protocols.cli.failures import CommandError, leaves

#: The module of each command, in the order of the help text.
_COMMANDS = {
    "serve": "serve",
    "demo": "demo",
    "provision": "provision",
    "user": "user",
    "device": "device",
    "app": "app",
    "token": "app",
    "limits": "limits",
    "key": "key",
    "retention": "retention",
    "store": "store",
    "simulate": "simulate",
    "tail": "tail",
    "receive": "receive",
    "history": "history",
    "type": "device_types",
    "plans": "monetization",
    "payments": "monetization",
    "rule": "rule",
    "statistics": "statistics",
    "audit": "audit",
    "backup": "backup",
    "restore": "backup",
    "doctor": "doctor",
}
_INTERRUPTED = 130  # the exit status that shells use for SIGINT


class _Commands(click.Group):
    """Imports only the command that is called, so that a simulated device does not load the web server."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"protocols.cli.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            for line in error.lines:
                click.echo(f"trunkline: {line}", err=True)
            ctx.exit(error.status)
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            if not any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
                raise
            ctx.exit(_INTERRUPTED)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trunkline")
def main() -> None:
    """Trunkline, a device data cloud in one process."""
