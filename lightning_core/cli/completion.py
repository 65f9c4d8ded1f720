"""`agl completion`: what a shell needs to complete `agl`."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_AGL_COMPLETE"
"""By this variable the shell asks for completions; click derives its name from the command's."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a SHELL complete `agl`.

    Put the line for your shell into its start-up file:

    \b
    Example:
      eval "$(agl completion bash)"        # ~/.bashrc
      eval "$(agl completion zsh)"         # ~/.zshrc
      agl completion fish | source         # ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"this version of click completes no {shell}; it has to be 8.1 or later", context)
    click.echo(found(context.find_root().command, {}, "agl", VARIABLE).source())
