"""Seeds from names, so that nothing depends on who comes first."""

import hashlib
import json


def seed_of(*key: str | int) -> int:
    """Derive a seed from what it is for.

    The same key gives the same seed in every process and on every machine.

    Returns:
        A number of 31 bits, which every model endpoint takes.
    """
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33
