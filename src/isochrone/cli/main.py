"""The `isochrone` command. One file a command; each is imported only when it is called, so that `--help` is quick."""

import difflib
import importlib
import os
import sys

import click

from isochrone import __version__

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""numpy's threads spin at the start and have nothing to do here. Before numpy is imported, so before any command."""

COMMANDS = {
    "check": "isochrone.cli.check",
    "demo": "isochrone.cli.demo",
    "emulate": "isochrone.cli.emulate",
    "keys": "isochrone.cli.keys",
    "replay": "isochrone.cli.replay",
    "serve": "isochrone.cli.serve",
    "simulate": "isochrone.cli.simulate",
    "up": "isochrone.cli.up",
    "usage": "isochrone.cli.usage",
    "validate": "isochrone.cli.validate",
}
"""Name -> module that holds a click command called `command`."""

SUMMARIES = {
    "check": "Say what is wrong with a configuration file, or what it amounts to.",
    "demo": "Compare scheduling policies on emulated engines, over real HTTP.",
    "emulate": "Run engines that are not there: OpenAI API, vLLM's metrics, measured step times.",
    "keys": "Make, list and revoke API keys.",
    "replay": "Run one seed of the fault tests again, event by event.",
    "serve": "Run the gateway in front of engines that are already up.",
    "simulate": "Compare scheduling policies on simulated engines, in virtual time.",
    "up": "Start engines and a gateway together and look after them.",
    "usage": "Show who used how much.",
    "validate": "Check the simulator against published measurements.",
}


class Commands(click.Group):
    """A group that imports a command when it is needed and names the nearest one on a typing error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[name]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(sorted(COMMANDS))}."
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES[name]) for name in self.list_commands(ctx)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="isochrone")
def main() -> None:
    """Turn a set of LLM inference engines into one cluster.

    \b
    Start here:
      isochrone emulate --port 9001 --count 2          two engines that are not there
      isochrone serve --instance http://127.0.0.1:9001 --instance http://127.0.0.1:9002
      curl http://127.0.0.1:8080/v1/models
    """


if __name__ == "__main__":
    sys.exit(main())
