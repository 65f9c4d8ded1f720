"""What an object says of itself, whatever it is."""


def text_of(value: object) -> str:
    """Return `str(value)`; for an object that has none, what happened instead. Never raises."""
    try:
        return str(value)
    except Exception as exc:
        # An agent's object may have a broken __str__; what is recorded of it must not become the agent's failure.
        return f"<no text: str() raised {type(exc).__name__}>"
