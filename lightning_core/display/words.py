"""Numbers in words: durations, counts, usage, metrics."""

from collections.abc import Mapping

from lightning_core.adapter.usage import Usage


def seconds(value: float) -> str:
    """Return a duration, as in `42 ms`, `1.2 s`, `12 s`, `3 min 5 s` or `2 h 10 min`."""
    if value < 0.9995:
        return f"{value * 1000:.{0 if value >= 0.01 else 1}f} ms"
    if value < 9.95:
        return f"{value:.2g} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in `1 call` or `2,345 calls`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def usage_words(usage: Usage) -> str:
    """Say what was asked of models, as in `12 model calls, 3,400 tokens in, 560 out, $0.0123`; what is known of it."""
    parts = [counted(usage.calls, "model call"), *token_words(usage)]
    if usage.cost is not None:
        parts.append(f"${usage.cost:.4f}" if usage.cost < 1 else f"${usage.cost:,.2f}")
    return ", ".join(parts)


def token_words(usage: Usage) -> list[str]:
    """Say how many tokens went in and came out; what is known of it."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return []
    if usage.input_tokens is None:
        return [f"{usage.output_tokens:,} tokens out"]
    out = [] if usage.output_tokens is None else [f"{usage.output_tokens:,} out"]
    return [f"{usage.input_tokens:,} tokens in", *out]


_MEASURES = ("reward", "gain", "score", "accuracy", "loss")
"""A metric with one of these in its name says something where it is zero, too."""


def metric_words(metrics: Mapping[str, float]) -> dict[str, str]:
    """Say what metrics are, by name; `x_initial`, and `x_low` with `x_high`, are told with `x`.

    A count that is zero is left out.
    """
    words = {}
    for name, value in metrics.items():
        before, low, high = (metrics.get(name + ending) for ending in ("_initial", "_low", "_high"))
        text = f"{value:.4g}" if before is None else f"{before:.3f} → {value:.3f}"
        text += "" if low is None or high is None else f" [{low:.3f}..{high:.3f}]"  # is the value's, not the change's
        words[name] = text if before is None else f"{text} ({value - before:+.3f})"
        if value == 0 and before is None and low is None and not any(each in name for each in _MEASURES):
            del words[name]
    for name in metrics:
        if f"{name}_initial" in metrics:
            words.pop(f"{name}_initial", None)
        if f"{name}_low" in metrics and f"{name}_high" in metrics:
            words.pop(f"{name}_low", None)
            words.pop(f"{name}_high", None)
    return words
