"""Every code block of README and docs runs, in a folder of its own and in the order of the page."""

import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.run_page import Block, blocks, command_of
from tests.docs.warm import served

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    # The template's page is about a plugin that is not installed; tests/test_template.py tries that out.
    *sorted(
        page
        for folder in ("docs", "plugins", "examples")
        for page in (ROOT / folder).rglob("*.md")
        if "_template" not in page.parts
    ),
]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Start all pages that are asked for, as many at a time as there are processors."""
    asked = [item for item in request.session.items if item.name.startswith("test_each_block_of_the_page_runs[")]
    with served(tmp_path_factory.mktemp("warm")) as variables, ThreadPoolExecutor(os.cpu_count()) as pool:
        pages = [item.callspec.params["page"] for item in asked if isinstance(item, pytest.Function)]
        yield {page: pool.submit(_run_alone, page, tmp_path_factory.mktemp("page"), variables) for page in pages}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_block_of_the_page_runs(page: Path, runs: "dict[Path, Future[subprocess.CompletedProcess[str]]]"):
    done = runs[page].result()
    assert done.returncode == 0, done.stdout


def _run_alone(page: Path, folder: Path, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    environment = {
        "HOME": str(folder),
        "LIGHTNING_CORE_SOURCE": str(ROOT),
        "PYTHONSAFEPATH": "",
        **{name: value for name, value in os.environ.items() if name == "SSL_CERT_FILE"},
        **variables,
    }
    return subprocess.run(
        [*command_of(RUNNER, variables), str(page)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_block_of_the_page_says_its_language(page: Path):
    silent = [block.line for block in blocks(page.read_text(encoding="utf-8")) if not block.language]
    assert silent == []


# A decision says why something is as it is, and the reference is made of docstrings.
GUIDES = [page for page in (ROOT / "docs").rglob("*.md") if not {"decisions", "reference"} & set(page.parts)]


@pytest.mark.parametrize("page", GUIDES, ids=_name)
def test_each_page_of_the_documentation_shows_an_example_that_runs(page: Path):
    shown = [block for block in blocks(page.read_text(encoding="utf-8")) if block.is_shown and not block.was_printed]
    runs_here = [block for block in shown if block.language in {"python", "bash"} and not block.why_not_run]
    assert runs_here or any(map(_named_test, shown))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_test_that_is_said_to_run_a_block_exists(page: Path):
    named = filter(None, map(_named_test, blocks(page.read_text(encoding="utf-8"))))
    assert [name for name in named if not (ROOT / name).is_file() and not (page.parent / name).is_file()] == []


def _named_test(block: Block) -> str | None:
    """Return the test that runs a block elsewhere, as the reason for not running it here says."""
    named = re.search(r"[\w./-]*test_\w+\.py", block.why_not_run or "")
    return named and named[0]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```python\nraise ValueError('no')\n```\n", 'page.md", line 2'),
        ("```bash\nfalse\n```\n", "page.md:2: exit status 1"),
        ("```rust\nfn main() {}\n```\n", "nothing runs 'rust'"),
        ('```python title="a.py"\nraise ValueError("no")\n```\n', "page.md:2: exit status 1"),
        ("```json\n{\n```\n", "JSONDecodeError"),
        ("```bash\necho one\n```\n\n<!-- printed -->\n```text\ntwo\n```\n", "page.md:7: line 1 was not printed: two"),
        ("```python\nprint('b', 'a')\n```\n<!-- printed -->\n```text\na\nb\n```\n", "line 2 was not printed: b"),
    ],
)
def test_a_page_with_a_broken_block_fails_and_says_where(page: str, said: str, tmp_path: Path):
    file = tmp_path / "page.md"
    file.write_text(page, encoding="utf-8")
    done = _run(file)
    assert done.returncode != 0
    assert said in done.stderr


def _run(page: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, RUNNER, page],
        cwd=page.parent,
        env={**os.environ, "HOME": str(page.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
