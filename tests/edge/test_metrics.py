import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.core.metrics import agent_metrics as m
from nodeagent.core.metrics.agent_metrics import METRICS, find_old_name
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import ALIGNED, ASSIGNMENTS, TOPOLOGY_DURATION, aligned, assignments
from nodeagent.core.metrics.totals import MetricTotals
from nodeagent.daemon.reports.exposition import CONTENT_TYPE, Exposition
from nodeagent.edge.observability.metrics_http import MetricsPages
from nodeagent.edge.transport.listening import ListenError, listen
from nodeagent.edge.transport.serving import Server, ServingThread
from nodeagent.formats.syntax.bind_address import parse_bind_address

NEVER: dict[Series, int] = {}


def lines(exposition: Exposition) -> list[str]:
    return exposition.text().decode().splitlines()


def totals_with_everything() -> MetricTotals:
    totals = MetricTotals()
    totals.add([aligned("container", "physical_cpu"), assignments("cpu", "pod_shared")])
    totals.observe(TOPOLOGY_DURATION, 1)
    totals.observe(m.EVENT_DURATION, 0.003)
    totals.count(m.CGROUP_WRITES, amount=7)
    return totals


def test_names_and_types_are_exact() -> None:
    shown = lines(Exposition(MetricTotals().snapshot(NEVER), aliases=False))
    types = dict(line.removeprefix("# TYPE ").split() for line in shown if line.startswith("# TYPE "))
    helps = dict(line.removeprefix("# HELP ").split(" ", 1) for line in shown if line.startswith("# HELP "))
    ours = {name: kind for name, kind in types.items() if not name.startswith("process_")}
    assert ours == {spec.name: spec.kind for spec in METRICS}
    assert {name: helps[name] for name in ours} == {spec.name: spec.help for spec in METRICS}


def test_counters_without_total_keep_their_names() -> None:
    shown = lines(Exposition(totals_with_everything().snapshot(NEVER)))
    assert f"# TYPE {ALIGNED} counter" in shown
    assert f"# TYPE {ASSIGNMENTS} counter" in shown
    assert ALIGNED + '{boundary="physical_cpu",scope="container"} 1.0' in shown
    assert ASSIGNMENTS + '{assignment_type="pod_shared",resource_name="cpu"} 1.0' in shown
    assert not [line for line in shown if f"{ALIGNED}_total" in line or f"{ASSIGNMENTS}_total" in line]


def test_histograms() -> None:
    shown = lines(Exposition(totals_with_everything().snapshot(NEVER)))
    buckets = [line for line in shown if line.startswith(TOPOLOGY_DURATION + "_bucket")]
    bounds = [
        "0.05",
        "0.1",
        "0.2",
        "0.4",
        "0.8",
        "1.6",
        "3.2",
        "6.4",
        "12.8",
        "25.6",
        "51.2",
        "102.4",
        "204.8",
        "409.6",
        "819.2",
        "+Inf",
    ]
    assert [re.findall(r'le="(.*)"', line)[0] for line in buckets] == bounds
    assert [line.split()[-1] for line in buckets] == ["0.0"] * 5 + ["1.0"] * 11
    assert TOPOLOGY_DURATION + "_count 1.0" in shown
    assert TOPOLOGY_DURATION + "_sum 1.0" in shown
    assert 'nodeagent_event_duration_seconds_bucket{le="0.005"} 1.0' in shown


@pytest.mark.parametrize("aliases", [True, False])
def test_aliases_carry_the_same_values(aliases: bool) -> None:
    totals = totals_with_everything()
    gauges = {Series("kubelet_cpu_manager_allocation_per_numa", (("numa_node", "1"),)): 4}
    served = {m.make_series(spec, "v1"): 1 for spec in m.POD_RESOURCES_METRICS}
    shown = lines(Exposition(totals.snapshot(gauges), aliases=aliases, read=lambda: served))
    values = dict(line.rsplit(" ", 1) for line in shown if not line.startswith("#"))
    for spec in METRICS:
        alias = find_old_name(spec.name)
        if alias is None:
            continue
        under = {key: value for key, value in values.items() if key.startswith(spec.name)}
        assert under
        same = {key.replace(spec.name, alias): value for key, value in under.items()}
        assert (same.items() <= values.items()) == aliases
        assert any(key.startswith(alias) for key in values) == aliases


def test_the_text_is_read_by_the_reference_parser_and_has_each_series_once() -> None:
    text = Exposition(totals_with_everything().snapshot(NEVER)).text().decode()
    samples = [
        (s.name, tuple(sorted(s.labels.items()))) for f in text_string_to_metric_families(text) for s in f.samples
    ]
    assert len(samples) > 100
    assert len(samples) == len(set(samples))
    assert "process_resident_memory_bytes" in {name for name, _ in samples}


def test_a_new_snapshot_shows_at_once() -> None:
    totals = MetricTotals()
    exposition = Exposition(totals.snapshot(NEVER))
    assert "nodeagent_cgroup_writes_total 0.0" in lines(exposition)
    totals.count(m.CGROUP_WRITES)
    assert "nodeagent_cgroup_writes_total 0.0" in lines(exposition)
    exposition.publish(totals.snapshot(NEVER), aliases=False)
    assert "nodeagent_cgroup_writes_total 1.0" in lines(exposition)
    assert not [line for line in lines(exposition) if line.startswith("cpu_manager_")]


class Daemon:
    """The part of the daemon that serves metrics."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/metrics.sock"
        self.problem: str | None = "not yet"
        self.failures: list[BaseException | None] = []
        self.thread = ServingThread(lambda _, err: self.failures.append(err))
        exposition = Exposition(MetricTotals().snapshot(NEVER))

        async def render() -> bytes:
            return exposition.text()

        self.pages = MetricsPages(
            metrics=render,
            content_type=CONTENT_TYPE,
            checks={"/healthz": lambda: (True, "ok"), "/readyz": lambda: (self.problem is None, self.problem or "ok")},
        )
        self.server = self.serve(self.address)

    def serve(self, address: str) -> Server:
        return self.thread.serve(listen(parse_bind_address(address)), self.pages)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    started = Daemon(tmp_path)
    yield started
    started.server.close()
    started.thread.stop()
    assert started.failures == []


def connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        channel = socket.socket(socket.AF_UNIX)
        channel.connect(address.removeprefix("unix:"))  # without a timeout it waits while the backlog is full
        channel.settimeout(30)
        return channel
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=30)


def exchange(address: str, request: bytes) -> tuple[str, dict[str, str], bytes]:
    with connect(address) as channel:
        channel.sendall(request)
        parts = []
        while part := channel.recv(65_536):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    return status, dict(line.split(": ", 1) for line in headers), body


def get(address: str, path: str, headers: str = "") -> tuple[str, dict[str, str], bytes]:
    return exchange(address, f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())


OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize("accept", ["", "Accept: text/plain;version=0.0.4\r\n", f"Accept: {OPENMETRICS}\r\n"])
def test_every_scraper_gets_the_text_format(daemon: Daemon, accept: str) -> None:
    status, headers, body = get(daemon.address, "/metrics", accept)
    assert status == "HTTP/1.1 200 OK"
    assert headers["Content-Type"] == CONTENT_TYPE
    assert int(headers["Content-Length"]) == len(body)
    assert f"# TYPE {ALIGNED} counter\n".encode() in body


def test_checks(daemon: Daemon) -> None:
    assert get(daemon.address, "/healthz")[::2] == ("HTTP/1.1 200 OK", b"ok\n")
    assert get(daemon.address, "/readyz")[::2] == ("HTTP/1.1 503 Service Unavailable", b"not yet\n")
    daemon.problem = None
    assert get(daemon.address, "/readyz?verbose=1")[::2] == ("HTTP/1.1 200 OK", b"ok\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", "200"),
        (b"GET /metrics?name[]=x HTTP/1.1\r\n\r\n", "200"),
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", "400"),
        (b"\xff\x00\r\n\r\n", "400"),
        (b"\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, "431"),
        (b"GET /" + b"x" * 20_000, "431"),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else value,
)
def test_requests(daemon: Daemon, request_bytes: bytes, status: str) -> None:
    answer, headers, body = exchange(daemon.address, request_bytes)
    assert answer.split()[1] == status
    assert headers["Connection"] == "close"
    assert (body == b"") == request_bytes.startswith(b"HEAD")


def test_a_flood_of_silent_connections_does_not_keep_a_scraper_out(daemon: Daemon) -> None:
    silent = []
    threads_before = threading.active_count()
    for _ in range(300):
        silent.append(connect(daemon.address))
        if len(silent) % 50 == 0:
            assert get(daemon.address, "/metrics")[0] == "HTTP/1.1 200 OK"
    assert threading.active_count() == threads_before
    for channel in silent:
        channel.close()


def test_a_flood_of_scrapes_renders_once_a_second(daemon: Daemon) -> None:
    rendered: list[bytes] = []
    before = time.monotonic()
    while time.monotonic() < before + 30 and len(rendered) < 200:
        rendered.append(get(daemon.address, "/metrics")[2])
    assert len(set(rendered)) <= 2 + (time.monotonic() - before)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_address_can_change_while_running(daemon: Daemon, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as probe:
        address = f"{host}:{probe.getsockname()[1]}"
        with pytest.raises(ListenError) as caught:
            daemon.serve(address)
        assert address in caught.value.message
    old, daemon.server = daemon.server, daemon.serve(address)
    old.close()
    assert get(address, "/metrics")[0] == "HTTP/1.1 200 OK"
    assert not Path(daemon.address.removeprefix("unix:")).exists()


def test_a_closed_address_is_free_again(daemon: Daemon) -> None:
    for _ in range(3):
        daemon.server.close()
        daemon.server = daemon.serve(daemon.address)
        assert get(daemon.address, "/readyz")[0] == "HTTP/1.1 503 Service Unavailable"


def test_bounds_are_small() -> None:
    assert MetricsPages.bounds.connections * MetricsPages.bounds.request_bytes * 2 <= 1 << 20
