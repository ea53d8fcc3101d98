"""Addresses to listen on, as text: `HOST:PORT`, `[IPv6]:PORT` or `unix:PATH`."""

from msgspec import Struct

UNIX_PREFIX = "unix:"
MAX_UNIX_PATH_BYTES = 107
"""Size of sun_path without its closing NUL (unix(7))."""
FORMS = "HOST:PORT, [IPv6]:PORT or unix:/PATH"


class BindAddressError(ValueError):
    """A text is not an address. The message names the text and the error."""


class TcpAddress(Struct, frozen=True):
    host: str
    port: int
    """Port number. 0 lets the kernel choose a free port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(Struct, frozen=True):
    path: str

    def __str__(self) -> str:
        return UNIX_PREFIX + self.path


BindAddress = TcpAddress | UnixAddress


def parse_bind_address(text: str) -> BindAddress:
    """Parse an address.

    Raises:
        BindAddressError: the text has none of the three forms.
    """
    if text.startswith(UNIX_PREFIX):
        path = text.removeprefix(UNIX_PREFIX)
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            raise BindAddressError(
                f"'{text}': a Unix socket needs an absolute path, such as unix:/run/nodeagent/metrics.sock"
            )
        if len(path.encode()) > MAX_UNIX_PATH_BYTES:
            raise BindAddressError(f"'{text}': the path is longer than {MAX_UNIX_PATH_BYTES} bytes")
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BindAddressError(f"'{text}': an IPv6 address needs brackets, such as [::1]:9753")
    if not colon or not host or any(c.isspace() or c in "[]/\0" for c in host):
        raise BindAddressError(f"'{text}' is not an address: {FORMS}")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535):
        raise BindAddressError(f"'{text}': the port is '{port}', not a number from 1 to 65535")
    return TcpAddress(host, int(port))
