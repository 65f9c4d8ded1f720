"""What the pages say of the whole: no command, variable or module is left out, and links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import lightning_core
from lightning_core.cli import agl
from lightning_core.registry import SHIPS_IN
from tests.docs.test_code_blocks import PAGES, ROOT

DOCS = ROOT / "docs"
VARIABLE = re.compile(r'"(AGL_[A-Z_]+)"')
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
SOURCES = [
    path
    for folder in ("lightning_core", *(ROOT / "plugins").glob("lightning-*"))
    for path in (ROOT / folder).rglob("*.py")
]


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", _text(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_pages_and_headings_that_exist(page: Path):
    for target, anchor in LINK.findall(_text(page)):
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{page.name} links to {target}"
        if anchor and not anchor.startswith("lightning_"):  # those are made from docstrings, and mkdocs checks them
            assert anchor in _anchors(place), f"{page.name} links to {target}#{anchor}"


def test_every_command_is_on_its_page():
    sections = CliRunner().invoke(agl, ["--help"], terminal_width=80).stdout.partition("\nStart:\n")[2]
    assert "\n  train  " in sections
    assert f"\nStart:\n{sections}" in _text(DOCS / "command-line.md")


def test_every_environment_variable_is_on_the_page_about_configuration():
    page = _text(DOCS / "configuration.md")
    product = [each for each in SOURCES if "tests" not in each.relative_to(ROOT).parts]
    read = {name for source in product for name in VARIABLE.findall(_text(source))}
    assert "AGL_RUNS_DIR" in read
    assert sorted(name for name in read if f"`{name}`" not in page) == []


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(_text(page) for page in (DOCS / "reference").glob("*.md"))
    modules = set(re.findall(r"^::: (\S+)$", pages, re.M))
    stub = _text(Path(lightning_core.__file__).with_suffix(".pyi"))
    homes = {f"lightning_core.{place}" for place in re.findall(r"^from \.([\w.]+) import", stub, re.M)}
    assert sorted(homes - modules) == []


def test_every_page_of_the_reference_is_listed_on_its_first_page():
    first = _text(DOCS / "reference" / "index.md")
    others = {page.name for page in (DOCS / "reference").glob("*.md")} - {"index.md"}
    assert sorted(name for name in others if f"]({name})" not in first) == []


def test_what_the_first_pages_install_has_the_commands_that_they_show():
    pages = [_text(page) for page in (ROOT / "README.md", DOCS / "quickstart.md", DOCS / "installation.md")]
    [plugins] = {found for page in pages for found in re.findall(r"^pip install .*/lightning-\{(.*)\}$", page, re.M)}
    shown = {SHIPS_IN["commands"].get(name) for page in pages[:2] for name in re.findall(r"\bagl ([a-z-]+)", page)}
    assert "lightning-viewer" in shown
    assert shown <= {None, *(f"lightning-{name}" for name in plugins.split(","))}


def test_every_distribution_is_in_the_table_of_them():
    page = _text(DOCS / "installation.md")
    folders = {folder.name for folder in (ROOT / "plugins").glob("lightning-*")}
    assert folders
    assert sorted(name for name in folders if f"| `{name}` |" not in page) == []


def test_every_agent_that_the_first_page_names_is_one_that_a_test_runs():
    tried = _text(ROOT / "examples" / "agents" / "test_agents.py")
    named = re.findall(r"\]\(examples/agents/(\w+)\.\w+\)", _text(ROOT / "README.md"))
    assert len(named) > 8
    assert sorted(name for name in named if name not in tried) == []


def test_the_skill_says_its_name_and_when_to_use_it():
    _, head, body = _text(DOCS / "SKILL.md").split("---\n", 2)
    said = yaml.safe_load(head)
    assert set(said) == {"name", "description"}
    assert re.fullmatch(r"[a-z-]{1,64}", said["name"])
    assert "Use it when" in said["description"]
    assert [command for command in ("init", "eval", "train", "gate") if f"\nagl {command} " not in body] == []
