"""HTTP pages at the metrics address: `/metrics`, and pages for checks such as `/readyz`."""

from collections.abc import Awaitable, Callable, Mapping

from nodeagent.formats.wire.exchange import Bounds, Broken, Peer

_TEXT = "text/plain; charset=utf-8"
_BROKEN = {
    Broken.TOO_LARGE: "431 Request Header Fields Too Large",
    Broken.TOO_SLOW: "408 Request Timeout",
    Broken.BUSY: "503 Service Unavailable",
    Broken.BUG: "500 Internal Server Error",
}

Check = Callable[[], tuple[bool, str]]
"""Function that makes a check. It returns whether the check succeeded, and the text of the check's page."""


class MetricsPages:
    """HTTP/1.x service for `ServingThread.serve`. It answers GET and HEAD, with one request per connection.

    Args:
        metrics: function that returns the content of `/metrics`.
        content_type: content type of `/metrics`.
        checks: functions by path, such as `/readyz`. They must be quick, because they are called in the serving thread. The HTTP status is
            503 if a check fails.
    """

    bounds = Bounds(connections=64, request_bytes=8 * 1024, read_seconds=5.0, write_seconds=5.0)
    terminator = b"\r\n\r\n"

    def __init__(
        self, *, metrics: Callable[[], Awaitable[bytes]], content_type: str, checks: Mapping[str, Check]
    ) -> None:
        assert "/metrics" not in checks
        self._metrics = metrics
        self._content_type = content_type
        self._checks = checks

    async def answer(self, request: bytes, peer: Peer | None) -> bytes:  # noqa: ARG002 - anyone who may connect may read
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not target.startswith(b"/"):
            return _response("400 Bad Request", b"this is HTTP/1.1: GET /metrics\n")
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", b"GET or HEAD\n", "Allow: GET, HEAD\r\n")
        path = target.partition(b"?")[0].decode("latin-1")
        with_body = method == b"GET"
        if path == "/metrics":
            return _response("200 OK", await self._metrics(), content_type=self._content_type, with_body=with_body)
        if path not in self._checks:
            known = " ".join(["/metrics", *sorted(self._checks)])
            return _response("404 Not Found", f"there are {known}\n".encode(), with_body=with_body)
        is_fine, text = self._checks[path]()
        status = "200 OK" if is_fine else "503 Service Unavailable"
        return _response(status, f"{text}\n".encode(), with_body=with_body)

    def make_refusal(self, why: Broken) -> bytes:
        return _response(_BROKEN[why], f"{why.value}\n".encode())


def _response(
    status: str, body: bytes, more_headers: str = "", *, content_type: str = _TEXT, with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"{more_headers}X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
