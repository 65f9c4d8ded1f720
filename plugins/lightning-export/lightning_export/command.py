"""`agl export`: what a run has made, in a form that other programs read."""

from pathlib import Path
from typing import Any

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
@click.option(
    "--rows",
    metavar="KIND",
    help="For jsonl, parquet and hf: messages (by default), sft, trajectories or triplets.",
)
@click.option(
    "--best",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of each input only the N with the highest rewards.",
)
@click.option("--min-reward", type=float, metavar="X", help="Only rollouts with at least this reward.")
@click.option("--mode", type=click.Choice(["train", "val", "test"]), help="Only rollouts of this mode.")
@click.option("--redact", is_flag=True, help="Replace keys and passwords by ***, and leave out token ids.")
@click.option("--endpoint", metavar="URL", help="For otlp: where traces go; by default what the environment says.")
@runs_dir_option
def export(run: str, target: str, output: Path | None, runs_dir: Path | None, **given: Any) -> None:
    """Write what a RUN has made in a form for other programs.

    RUN is an id, the beginning of one, or the path of its folder.

    \b
    Forms:
      jsonl, parquet, hf   rows to train on: a file, or a folder for load_dataset
      atif                 trajectories, in a folder for harbor
      otlp                 traces, sent to Phoenix, Jaeger or another collector
    Of lightning-tokens:
      model                the newest model that was saved, or LoRA adapter, for vLLM

    \b
    Example:
      agl export run-3f2a --to hf --rows sft --best 2 -o examples
      agl export run-3f2a --to otlp --endpoint http://127.0.0.1:6006/v1/traces
      agl export run-3f2a --to model -o trained
    """
    # Imported here, so that listing the commands stays fast.
    import functools
    import tempfile

    from lightning_core.errors import ConfigError
    from lightning_core.registry import default_registry
    from lightning_core.registry.options import check_options
    from lightning_core.runs.folder import find_run

    write = default_registry().load("exports", target)
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    folder = find_run(runs_root(runs_dir), run)
    place = (output or Path(f"{folder.run_id}-{target}")).absolute()
    taken = ConfigError(f"{place} is there already; name another place with -o")
    if place.exists():
        raise taken
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        drafts = tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent)
    except OSError as exc:
        raise ConfigError(f"cannot write {place}: {exc.strerror}") from exc
    with drafts as drafts_folder:
        draft = Path(drafts_folder, place.name)
        write_draft = functools.partial(write, folder, draft)
        check_options(f"--to {target}", options, write_draft)
        written = write_draft(**options)
        if draft.exists():
            try:
                if not draft.is_dir():
                    place.open("x").close()  # a file is replaced without an error
                draft.replace(place)
            except OSError as exc:
                raise (taken if place.exists() else exc) from exc  # by another export, meanwhile
            written = f"{place}: {written}"
        elif output is not None:
            written += f"; nothing was written to {output}, as --to {target} makes no file"
    click.echo(written)
