"""FNV-1a, 32 bit: the hash under kubelet's checkpoint checksums."""

_OFFSET = 2166136261
_PRIME = 16777619
_MASK = 0xFFFFFFFF


def fnv1a_32(text: str) -> int:
    """Hash the UTF-8 bytes of a text."""
    value = _OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _PRIME & _MASK
    return value
