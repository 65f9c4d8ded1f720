"""Make a plugin of a copy of this template.

    cp -R plugins/_template lightning-greedy
    cd lightning-greedy
    python rename.py greedy

The distribution is then `lightning-greedy`, the package `lightning_greedy`, the class `Greedy`, and `greedy` the name
that people ask for. The script removes itself.
"""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TEXTS = {".md", ".py", ".toml"}


def rename(folder: Path, name: str) -> None:
    """Put `name` wherever the template says `mytuner`, in files and in their names.

    Args:
        folder: The copy.
        name: Lower-case words, joined by hyphens.

    Raises:
        ValueError: When `name` is something else.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(
            f"{name!r} cannot be a plugin's name; write lower-case words joined by hyphens, as in my-search"
        )
    module = name.replace("-", "_")
    new_names = {
        "lightning_mytuner": f"lightning_{module}",
        "lightning_mytuner.mytuner": f"lightning_{module}.{module}",
        "MyTuner": "".join(word.capitalize() for word in name.split("-")),
        "mytuner": name,
    }
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder comes before the folder itself
        if path.is_file() and path.suffix in TEXTS and path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            path.write_text(_replaced(text, new_names), encoding="utf-8")
        if "mytuner" in path.name:
            path.rename(path.with_name(path.name.replace("mytuner", module)))


def _replaced(text: str, new_names: dict[str, str]) -> str:
    longest_first = sorted(new_names, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda match: new_names[match[0]], text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {Path(__file__).name} NAME")
    try:
        rename(FOLDER, sys.argv[1])
    except ValueError as exc:
        sys.exit(str(exc))
    Path(__file__).unlink()
