"""`agl serve`: the commands that answer others until they are stopped."""

import click

from lightning_core.registry import default_registry

SERVERS = ("store", "proxy", "legacy")
"""The commands that `agl serve` offers; each is called by its own name, too."""


class _Servers(click.Group):
    """The commands of `agl` that serve."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        installed = {component.name for component in default_registry().components("commands")}
        return [name for name in SERVERS if name in installed]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        top = ctx.find_root().command
        assert isinstance(top, click.Group)
        return top.get_command(ctx, cmd_name) if cmd_name in SERVERS else None


@click.group(cls=_Servers)
def serve() -> None:
    """Serve a store, models, or a run to agents of older versions.

    \b
    Example:
      agl serve store --backend sqlite --path runs/store.db
      agl serve proxy models.yaml --store http://127.0.0.1:4747
    """
