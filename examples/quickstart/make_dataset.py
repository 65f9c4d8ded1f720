"""Write train.jsonl, val.jsonl and test.jsonl: orders, and what each costs. Run it again and it writes the same.

python make_dataset.py
"""

import json
import random
from pathlib import Path

from price_list import PRICES, in_dollars

SIZES = {"train": 40, "val": 60, "test": 60}


def make_datasets(seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """Return the samples of each dataset by its name; no question occurs twice."""
    lot = random.Random(seed)
    samples: dict[str, dict[str, str]] = {}
    while len(samples) < sum(SIZES.values()):
        quantities = {product: lot.randint(1, 9) for product in lot.sample(sorted(PRICES), lot.randint(2, 4))}
        *first, last = [f"{number} {product}{'s' * (number > 1)}" for product, number in quantities.items()]
        question = f"What do {', '.join(first)} and {last} cost together?"
        total = sum(number * PRICES[product] for product, number in quantities.items())
        samples[question] = {"question": question, "total": in_dollars(total)}
    ordered = iter(samples.values())
    return {name: [next(ordered) for _ in range(size)] for name, size in SIZES.items()}


def as_jsonl(samples: list[dict[str, str]]) -> str:
    """Return the samples as text, one JSON object a line."""
    return "".join(json.dumps(sample) + "\n" for sample in samples)


if __name__ == "__main__":
    for name, samples in make_datasets().items():
        Path(__file__).with_name(f"{name}.jsonl").write_text(as_jsonl(samples), encoding="utf-8")
