"""The benchmark of churn finds what it is there to find, and a short run of it finds nothing."""

from pathlib import Path

import pytest

from benchmarks.churn import Churn, list_overlaps
from benchmarks.plain_node import plain_agent
from nodeagent.daemon.turn.wakeups import WakeUpReason

PODS = 20


def test_pods_come_and_go_beside_agents_that_are_restarted_and_no_cpu_has_two_owners(tmp_path: Path) -> None:
    churn = Churn(tmp_path, PODS)
    for _ in range(2):
        churn.live(changes=25)
    assert churn.overlaps == []
    assert churn.done["lives of the agent"] == 2
    assert min(churn.done[what] for what in ("pods that came", "pods that went", "pods that changed")) > 0


@pytest.mark.parametrize("other", ["exclusive", "mixed", "sharing"])
def test_a_cpu_with_two_owners_is_counted(tmp_path: Path, other: str) -> None:
    churn = Churn(tmp_path, PODS)
    with plain_agent(churn.node, tmp_path, churn.launcher) as daemon:
        churn.settle(daemon, WakeUpReason.START)
    assert churn.overlaps == []
    requests = {request.identifier: request for request in churn.launcher.requests.values()}
    victim = requests[next(name for name in sorted(requests) if name.startswith("exclusive"))]
    thief = requests[next(name for name in sorted(requests, reverse=True) if name.startswith(other))]
    taken = Path(str(victim.cgroup)).parent / "cpuset.cpus"
    for cgroup in (Path(str(thief.cgroup)), *Path(str(thief.cgroup)).parents):
        if cgroup == churn.launcher.root.parent:
            break
        for file in cgroup.glob("cpuset.cpus"):
            file.write_text(f"{file.read_text().strip()},{taken.read_text()}".strip(",\n"))
    assert list(list_overlaps(churn.launcher)) != []
