"""`agl init`: a small project to start from."""

import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import click

from lightning_core.errors import ConfigError


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--environment", metavar="NAME[:TASK]", help="Write only a config, with tasks of an environment and its agent."
)
def init(folder: Path, environment: str | None) -> None:
    """Write a small project into DIR, which trains at once.

    It has an agent, data, a config and tests, and needs no account and no network. Without DIR it is in the current
    folder. No file is ever overwritten.

    \b
    Example:
      agl init demo
      cd demo
      agl train config.yaml
      agl init sums --environment reasoning_gym:chain_sum
    """
    project = list(project_files()) if environment is None else [_config_for(environment)]
    there = [str(folder / place) for place, _ in project if (folder / place).exists()]
    if there:
        raise ConfigError(
            f"nothing was written, because this is there already: {', '.join(there)}; name another folder"
        )
    try:
        for place, content in project:
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
            click.echo(f"wrote {path}")
    except OSError as exc:
        raise ConfigError(f"cannot write the project: {exc.filename}: {exc.strerror}") from exc
    click.echo()
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"Now: {enter}agl train config.yaml")


def _config_for(environment: str) -> tuple[PurePosixPath, bytes]:
    """Return the config for an environment: its tasks, its agent's first prompt, and a model to put in."""
    from lightning_core.agent.environments import make_environment
    from lightning_core.registry import default_registry

    prompt = make_environment(environment, {}).prompt
    name, _, task = environment.partition(":")
    known = {component.name for component in default_registry().components("environments")}
    options = f"environment: {name}, task: {task}" if task and name in known else f'environment: "{environment}"'
    resources = ""
    if prompt is not None:
        text = prompt.replace("\n", "\n      ").replace("      \n", "\n")
        resources = "\ninitial_resources: # what is tuned\n  main_prompt:\n    resource_type: prompt_template\n"
        resources += f"    template: |-\n      {text}\n"
    config = f"""\
# Tasks, scorer and agent are those of an environment. Check the scorer with: agl check config.yaml
algorithm: baseline # measures; take apo or gepa to improve the prompt, grpo or verl to train the model
n_runners: 8

llm_proxy: # the agent's model: any endpoint that speaks OpenAI's API
  model_list:
    - model_name: agent
      litellm_params: {{model: openai/gpt-4.1-mini, api_key: os.environ/OPENAI_API_KEY}}
{resources}
train_dataset: {{{options}, size: 100}}
val_dataset: {{{options}, size: 50}} # no task is in two of them
test_dataset: {{{options}, size: 50}}
"""
    return PurePosixPath("config.yaml"), config.encode()


_SUFFIX = ".template"
"""So that no tool takes these files for part of the package."""


def project_files() -> Iterator[tuple[PurePosixPath, bytes]]:
    """Give the files of the project, in `scaffold/`: where each belongs, and what is in it; sorted by name."""
    root = Path(__file__).parent / "scaffold"
    for path in sorted(root.rglob(f"*{_SUFFIX}")):
        yield PurePosixPath(path.relative_to(root).as_posix().removesuffix(_SUFFIX)), path.read_bytes()
