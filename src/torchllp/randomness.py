"""Randomness as a function of a purpose and a few integers: to resume exactly needs no generator state."""

import hashlib


def seed_of(purpose: str, *integers: int) -> int:
    """One 63-bit seed for these integers; other purposes and other integers give unrelated seeds.

    >>> seed_of("views", 0, 1) == seed_of("views", 0, 1)
    True
    >>> len({seed_of("views", 0), seed_of("views", 0, 0), seed_of("bags", 0), seed_of("views", 1)})
    4
    """
    digest = hashlib.sha256(f"{purpose} {integers}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
