"""SHA-256 digests, computed without `hashlib` if the content is short. `hashlib` loads OpenSSL, which costs 4 MiB of memory and much
start-up time. OpenSSL is several times faster, so it is loaded for the first long content.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

_SHORT_BYTES = 2**16


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 digest of the content in hexadecimal notation."""
    digest: str = _find_sha256(is_short=len(content) <= _SHORT_BYTES)(content).hexdigest()
    return digest


@cache
def _find_sha256(*, is_short: bool) -> Callable[[bytes], Any]:
    # the module is called _sha2 since Python 3.12, and was called _sha256 before
    for own in ("_sha2", "_sha256") if is_short else ():
        with suppress(ImportError):
            function: Callable[[bytes], Any] = import_module(own).sha256
            return function
    from hashlib import sha256  # noqa: PLC0415 - as said above

    return sha256
