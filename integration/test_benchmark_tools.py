"""hyperfine of Debian, as a job of a real agent: its results have the verdict on the run."""

import json

import pytest

from integration.guest.guest import Guest
from integration.guest.programs import bring
from integration.node import Node
from nodeagent.core.model.idset import CpuSet
from scripts.shown import ROOT

PROGRAMS = "/opt/nodeagent/share/nodeagent/contrib/benchmark"


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    node = Node(four_nodes)
    node.clear()
    bring(four_nodes, ("hyperfine",))
    return node


def test_hyperfine_has_the_verdict_beside_its_results(node: Node) -> None:
    page = (ROOT / "docs/how-to/benchmark-tools.md").read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("certified ") and " hyperfine " in line]
    done = node.run(
        f"cd /tmp && rm -f bench.* && PATH=$PATH:{PROGRAMS} {command.replace('1Gi', '64Mi')}", timeout_seconds=120
    )
    print(done.stdout, done.stderr)
    results, report = (json.loads(node.guest.get(f"/tmp/bench{suffix}.json")) for suffix in ("", ".report"))
    assert [(one["command"], len(one["times"]) >= 10) for one in results["results"]] == [("sleep 0.1", True)]
    found = results["nodeagent"]
    assert (found["verdict"], found["report"]) == (report["verdict"], "bench.report.json")
    assert found["cpus"] == report["exclusiveCPUs"]
    assert len(CpuSet.parse(found["cpus"])) == 2
    assert report["cgroup"]["cpuMicroseconds"] > 0
