"""The command line. A command's module is imported when the command is called."""

import importlib
from keyword import iskeyword
from typing import Any

import click

from config.shown_command import commands_of_this_program
from protocols.cli.failures import CommandError, leaves
from protocols.operation.interpreter import collect_garbage_seldom, importing

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
    "drain": "drain",
    "migrate": "store",
    "migrate-store": "migrate_store",
    "store": "store",
    "simulate": "simulate",
    "tail": "tail",
    "receive": "receive",
    "mcp": "mcp",
    "history": "history",
    "export": "export",
    "import": "export",
    "type": "device_types",
    "plans": "monetization",
    "payments": "monetization",
    "rule": "rule",
    "found": "found",
    "forward": "forward",
    "edge": "edge",
    "statistics": "statistics",
    "audit": "audit",
    "backup": "backup",
    "restore": "backup",
    "doctor": "doctor",
}
#: The first sentence of each command's help: to print all of them imports no command. The others are imported for it.
_FIRST_SENTENCES = {
    "serve": "Serve devices and applications until SIGTERM or SIGINT.",
    "demo": "Serve with demo data and simulated devices, on this machine only, and print commands to try.",
    "provision": "Create or update what FILE describes; running it twice changes nothing.",
    "user": "People who have an account, or are invited to open one.",
    "device": "Devices of a running or a stopped daemon.",
    "app": "Applications of a running or a stopped daemon.",
    "token": "Tokens for scripts.",
    "limits": "List what devices, users, applications and organizations have used on this day and in this month.",
    "key": "The key that seals the secrets in the store.",
    "retention": "Control deletion by age.",
    "drain": "Move the connections of the running daemon to the other nodes, and end it.",
    "migrate": "Bring the store of a stopped daemon to this version, as the daemon does when it starts.",
    "migrate-store": "Copy the store into a database of PostgreSQL, or back into a file, and compare both.",
    "store": "The file that holds everything.",
    "simulate": "Send plausible messages as a device and print the Actions it receives.",
    "tail": "Print each message of the live feed as it is stored, one line of JSON each.",
    "receive": "Print what a callback gets, one line of JSON for each notification.",
    "mcp": "Let an assistant on this machine ask the service: the Model Context Protocol over stdin and stdout.",
    "history": "Print the latest messages of a device (id or name), one line of JSON each, oldest first.",
    "export": "Write messages into FOLDER: one file for each device type, with a column for each field.",
    "import": "Bring messages from FILES of CSV, as `trunkline export` writes them.",
    "type": "Device types of the running daemon and their Manifests.",
    "plans": "List the plans that are not decided yet.",
    "payments": "List the payments that have to be refunded, and the undecided ones.",
    "rule": "Rules of the running daemon.",
    "found": "Devices that MQTT clients of the running daemon announce.",
    "forward": "Upstreams that get what this store gets.",
    "edge": "Stores that forward to this one.",
    "statistics": "Print the counters of the running daemon: the store, refusals, limits, ingest, "
    "connections, disk use, mails.",
    "audit": "Print the audit log, oldest entry first.",
    "backup": "Write everything that the daemon keeps into FILE: the store with all messages and files, and the key.",
    "restore": "Put back what `trunkline backup` has written into FILE, into a state directory without a store.",
    "doctor": "Look at configuration, store, disk, clock, ports, certificates, GnuTLS, descriptors and "
    "the unit of systemd.",
}
_INTERRUPTED = 130  # the exit status that shells use for SIGINT


class _Commands(click.Group):
    """Imports only the command that is called, so that a simulated device does not load the web server."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        collect_garbage_seldom()
        name = f"protocols.cli.{_COMMANDS[cmd_name]}"
        with importing(name):
            module = importlib.import_module(name)
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" if iskeyword(name) else name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, _COMMANDS))  # as click's own
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._described(ctx, name).get_short_help_str(limit)) for name in _COMMANDS])

    def _described(self, ctx: click.Context, name: str) -> click.Command:
        if name in _FIRST_SENTENCES:
            return click.Command(name, help=_FIRST_SENTENCES[name])
        return self.get_command(ctx, name) or click.Command(name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with commands_of_this_program():
                return super().invoke(ctx)
        except CommandError as error:
            for line in error.lines:
                click.echo(f"trunkline: {line}", err=True)
            ctx.exit(error.status)
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            if not any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
                raise
            ctx.exit(_INTERRUPTED)


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        version = importlib.import_module("storage.migrations").VERSION  # takes a moment, so only on demand
        click.echo(f"trunkline {version}")
        context.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Version and exit."
)
def main() -> None:
    """Trunkline, a device data cloud in one process."""
