"""`agl environments`: which tasks there are."""

import click


@click.command()
@click.argument("name", required=False)
def environments(name: str | None) -> None:
    """List the environments, or the tasks of one.

    \b
    Example:
      agl environments
      agl environments reasoning_gym
    """
    # Imported here, so that listing the commands stays fast.
    from lightning_core.agent import Environment
    from lightning_core.errors import ConfigError
    from lightning_core.registry import default_registry

    registry = default_registry()
    if name is not None:
        for task in registry.load("environments", name).names():
            click.echo(task)
        return
    for component in registry.components("environments"):
        try:
            kind: type[Environment] = registry.load_component(component)
            count = len(kind.names())
            text = f"{count:,} tasks" if count else "tasks by its options"
        except ConfigError as exc:
            text = str(exc)
        click.echo(f"{component.name}  {component.distribution}  {text}")
