"""Digests: equal whichever module computes them, and of short contents without OpenSSL."""

import hashlib
import subprocess
import sys

import pytest

WITHOUT_OWN = "sys.modules['_sha2'] = sys.modules['_sha256'] = None"


@pytest.mark.parametrize(
    ("size", "before", "loads_openssl"),
    [(0, "", False), (2**16, "", False), (2**16 + 1, "", True), (2**16, WITHOUT_OWN, True)],
)
def test_only_a_long_content_loads_openssl(size: int, before: str, *, loads_openssl: bool) -> None:
    program = (
        f"import sys; from nodeagent.core.model.digest import sha256_hex; {before}\n"
        f"print(sha256_hex(b'x' * {size}), 'hashlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hashlib.sha256(b"x" * size).hexdigest(), str(loads_openssl)]
