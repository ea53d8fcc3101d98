"""FNV-1a, 32 bit: the hash under kubelet's checkpoint checksums."""

from fnv_hash_fast import fnv1a_32 as _hash_of_bytes


def fnv1a_32(text: str) -> int:
    """Hash the UTF-8 bytes of a text."""
    value: int = _hash_of_bytes(text.encode())
    return value
