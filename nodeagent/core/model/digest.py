"""SHA-256 digests. As `hashlib` loads OpenSSL, which takes longer than many modules together, it is loaded only for the first digest."""


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 digest of a content in hexadecimal notation."""
    from hashlib import sha256  # noqa: PLC0415 - as said above

    return sha256(content).hexdigest()
