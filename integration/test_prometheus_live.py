"""A Prometheus server scrapes the node with the files of contrib/: every rule and every panel of the dashboard is queried there."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from integration.contrib import METRICS_PAGE, filled_in, panel_queries, rules
from integration.guest.base import base_of
from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.releases import DEBIAN_12
from integration.guest.settings import quiet_configuration
from integration.guest.trees import in_copy_of
from integration.node import Node, container, pod
from scripts.shown import ROOT

SLEEP = ["sleep", "infinity"]
CONTRIB = "/opt/nodeagent/share/nodeagent/contrib/prometheus"
PLACE = "/run/prometheus-test"
SERVER = "http://127.0.0.1:9090"
ASK = """
import json, sys, urllib.error, urllib.parse, urllib.request
for query in json.load(sys.stdin):
    try:
        url = sys.argv[1] + "/api/v1/query?" + urllib.parse.urlencode({"query": query})
        print(urllib.request.urlopen(url).read().decode())
    except urllib.error.HTTPError as err:
        print(err.read().decode())
"""


class Server:
    def __init__(self, node: Node) -> None:
        self.node = node

    def start(self) -> None:
        """As in the example configuration, except the intervals, which are long enough for a slow guest's scrape."""
        self.node.run(
            f"rm -rf {PLACE}; mkdir {PLACE}; cp {CONTRIB}/*.yml {PLACE};"
            f" sed -i 's/: 15s/: 3s/; s/scrape_interval: 3s/&\\n  scrape_timeout: 3s/' {PLACE}/prometheus.yml;"
            f" chown -R prometheus {PLACE}"
        )
        self.node.run(
            "systemd-run --quiet --unit prometheus-test --uid prometheus prometheus"
            f" --config.file={PLACE}/prometheus.yml --storage.tsdb.path={PLACE}/data --web.listen-address=127.0.0.1:9090"
        )
        self.node.run(f"until curl -fsS {SERVER}/-/ready >/dev/null 2>&1; do sleep 0.2; done")

    def stop(self) -> None:
        self.node.run(f"systemctl stop prometheus-test; rm -rf {PLACE}")

    def ask(self, *queries: str) -> list[dict[str, Any]]:
        """The server's answers, of which each says `success` or `error`."""
        asked = self.node.guest.run(["python3", "-c", ASK, SERVER], input=json.dumps(queries).encode())
        return [json.loads(line) for line in asked.stdout.splitlines()]

    def samples(self, query: str) -> dict[str, float]:
        """The result of a query, by labels."""
        (answer,) = self.ask(query)
        assert answer["status"] == "success", answer
        return {
            ",".join(
                f"{k}={v}" for k, v in sorted(one["metric"].items()) if k not in {"__name__", "instance", "job"}
            ): float(one["value"][1])
            for one in answer["data"]["result"]
        }

    def without_result(self, queries: list[str]) -> set[str]:
        """The queries without a result; one that is wrong, or answered with a warning, fails at once."""
        answers = dict(zip(queries, self.ask(*queries), strict=True))
        assert {q: a for q, a in answers.items() if a["status"] != "success" or a.get("warnings")} == {}
        return {query for query, answer in answers.items() if not answer["data"]["result"]}

    def rule_health(self) -> dict[str, str]:
        """Each loaded rule's health, `unknown` until it was evaluated, or the error of its last evaluation."""
        loaded = json.loads(self.node.run(f"curl -fsS {SERVER}/api/v1/rules").stdout)
        shown = [rule for group in loaded["data"]["groups"] for rule in group["rules"]]
        return {rule["name"]: rule.get("lastError") or rule["health"] for rule in shown}

    def wait(self, query: str, expected: dict[str, float]) -> None:
        """Wait until a query has exactly this result."""
        self.node.wait(lambda _: self.samples(query) == expected, f"{query} to be {expected}")


@pytest.fixture
def server(two_sockets: Guest) -> Iterator[Server]:
    server = Server(Node(two_sockets))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_a_server_scrapes_the_node_and_every_panel_and_rule_has_an_answer(server: Server) -> None:
    node = server.node
    node.configure(
        quiet_configuration()
        + "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"
    )
    node.apply(
        pod("one", container("app", SLEEP, cpu="2")),
        pod("free", container("app", SLEEP)),
        pod("huge", container("app", SLEEP, cpu="100")),
    )
    node.wait_running("one", "free", refused=("huge",))
    server.wait('up{job="nodeagent"}', {"": 1})
    server.wait('sum by (phase) (nodeagent_pods{phase=~"Running|Failed"})', {"phase=Running": 2, "phase=Failed": 1})
    server.wait("instance:nodeagent_exclusive_cpus:ratio", {"": 2 / 15})
    server.wait('instance_reason:nodeagent_pod_refusals:increase1h{reason="OutOfmemory"}', {"reason=OutOfmemory": 0})
    alerts = {rule.expression for rule in rules() if rule.is_alert}
    queries = [rule.expression for rule in rules()] + [filled_in(query.expression) for query in panel_queries()]
    lines = {query for query in queries if query not in alerts and "> 0" not in query}
    joined = re.search(r"`(rate\(.*\) \* on .* nodeagent_container_info)`", METRICS_PAGE.read_text())
    assert joined is not None
    lines.add(joined[1])
    queries.append(joined[1])
    missing = set[str]()

    def each_has_a_line() -> bool | None:
        missing.clear()
        missing.update(lines & server.without_result(queries))
        return not missing or None

    node.until(each_has_a_line, lambda: f"rules and panels have no line: {sorted(missing)}")
    node.wait(lambda _: set(server.rule_health()) == {rule.name for rule in rules()}, "every rule to be loaded")
    node.wait(lambda _: set(server.rule_health().values()) == {"ok"}, "every rule to be evaluated")


def test_promtool_finds_the_files_right() -> None:
    """In the tree of the guests, where nothing is emulated: the files need no node."""
    guest_image(DEBIAN_12)
    in_copy_of(
        base_of(DEBIAN_12).root,
        "cp /mnt/*.yml /tmp\ncd /tmp\npromtool check config prometheus.yml\npromtool test rules nodeagent.tests.yml",
        mounts=((ROOT / "contrib/prometheus", "/mnt"),),
    )
