import pytest

from nodeagent.formats.syntax.bind_address import (
    BindAddress,
    BindAddressError,
    TcpAddress,
    UnixAddress,
    parse_bind_address,
)

GOOD: list[tuple[str, BindAddress]] = [
    ("127.0.0.1:9753", TcpAddress("127.0.0.1", 9753)),
    ("localhost:1", TcpAddress("localhost", 1)),
    ("[::1]:65535", TcpAddress("::1", 65535)),
    ("[fe80::1%eth0]:9753", TcpAddress("fe80::1%eth0", 9753)),
    ("unix:/run/nodeagent/metrics.sock", UnixAddress("/run/nodeagent/metrics.sock")),
    ("unix:/with:colon", UnixAddress("/with:colon")),
    ("unix:/" + "x" * 106, UnixAddress("/" + "x" * 106)),
]


@pytest.mark.parametrize(("text", "address"), GOOD)
def test_an_address_is_read_and_spelt_again(text: str, address: BindAddress) -> None:
    assert parse_bind_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "HOST:PORT"),
        ("9753", "HOST:PORT"),
        (":9753", "HOST:PORT"),
        ("127.0.0.1", "HOST:PORT"),
        ("127.0.0.1:", "port"),
        ("127.0.0.1:0", "port"),
        ("127.0.0.1:65536", "port"),
        ("127.0.0.1:+1", "port"),
        ("127.0.0.1:９", "port"),
        ("127.0.0.1:" + "9" * 10_000, "port"),
        ("::1:9753", "brackets"),
        ("[::1]9753", "brackets"),
        ("http://127.0.0.1:9753", "brackets"),
        ("a b:1", "HOST:PORT"),
        ("unix:", "absolute"),
        ("unix:run/metrics.sock", "absolute"),
        ("unix:/run/", "absolute"),
        ("unix:/a\0b", "absolute"),
        ("unix:/" + "x" * 107, "longer"),
    ],
)
def test_what_is_no_address_is_named(text: str, word: str) -> None:
    with pytest.raises(BindAddressError) as caught:
        parse_bind_address(text)
    assert text in str(caught.value)
    assert word in str(caught.value)
