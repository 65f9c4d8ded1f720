"""What the shop of this example sells."""

PRICES = {
    "notebook": 325,
    "pen": 140,
    "stapler": 895,
    "lamp": 2450,
    "folder": 210,
    "calculator": 1299,
    "ruler": 175,
    "marker": 260,
    "backpack": 3980,
    "eraser": 85,
    "globe": 4615,
    "clipboard": 540,
}
"""Product -> price in cents. The plural of each is formed with an s."""


def in_dollars(cents: int) -> str:
    """Return the amount with two decimals: 1250 is `"12.50"`."""
    return f"{cents // 100}.{cents % 100:02d}"
