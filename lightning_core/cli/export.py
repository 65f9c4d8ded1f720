"""`agl export`: what a run has made, in a form that other programs read."""

from pathlib import Path

import click

from lightning_core.cli.options import runs_dir_option, runs_root


@click.command()
@click.argument("run")
@click.option("--to", "target", metavar="FORM", required=True, help="What to write: a name that a plugin offers.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write it; nothing may be there. Without it, RUN-FORM in the current folder.",
)
@runs_dir_option
def export(run: str, target: str, output: Path | None, runs_dir: Path | None) -> None:
    """Write what a RUN has made, in a form that other programs read.

    RUN is an id, the beginning of one, or the path of its folder. The form `model` (of lightning-verl) is a folder for
    vLLM: the newest model that was saved, or the LoRA adapter.

    \b
    Example:
      agl export run-3f2a --to model -o trained
    """
    # Imported here, so that listing the commands stays fast.
    import os
    import shutil

    from lightning_core.errors import ConfigError
    from lightning_core.registry import default_registry
    from lightning_core.runs.folder import find_run

    write = default_registry().load("exports", target)
    folder = find_run(runs_root(runs_dir), run)
    output = (output or Path(f"{folder.run_id}-{target}")).absolute()
    if output.exists():
        raise ConfigError(f"{output} is there already; name another place with -o")
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        written = write(folder, draft)
        draft.rename(output)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
            draft.unlink(missing_ok=True)
    click.echo(f"{output}: {written}")
