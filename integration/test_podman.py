"""Containers of a real podman, by each of the ways that the how-to pages name: where they run is where the agent wants them."""

from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.guest.programs import bring
from integration.node import Node, container, pod
from nodeagent.core.model.idset import CpuSet

PACKAGES = ("podman", "crun")
"""Podman's own choice is any OCI runtime, and runc is there; `--cgroups=disabled` needs crun."""
ROOT = "/srv/box"
"""The files of the containers: podman takes a directory for an image's."""
SLEEP = f"--rm --network host --rootfs {ROOT} /bin/busybox sleep infinity"
QUADLET = f"""\
[Container]
Rootfs={ROOT}
Network=host
Exec=/bin/busybox sleep infinity
StopTimeout=0
"""
SPLIT = f"""\
[Service]
Type=notify
NotifyAccess=all
Delegate=yes
KillSignal=SIGKILL
ExecStart=podman run --cgroups=split --sdnotify=conmon {SLEEP}
"""
"""The first process of a container isn't ended by a signal that it doesn't handle."""


@pytest.fixture
def node(four_nodes: Guest) -> Iterator[Node]:
    """With podman, and a directory to run containers in."""
    node = Node(four_nodes)
    bring(four_nodes, PACKAGES)
    node.run(f"mkdir -p {ROOT}/bin && cp $(command -v busybox) {ROOT}/bin/busybox")
    yield node
    node.run("podman rm --all --force --time 0", check=False, timeout_seconds=60)


def places(node: Node, cgroup: str) -> dict[str, CpuSet]:
    """Where the sleeping processes below a cgroup may run, by pid. Podman's own beside them are as well there."""
    pids = node.run(f"cat $(find {cgroup} -name cgroup.procs)").stdout.split()
    return {pid: CpuSet.parse(node.allowed(int(pid))[0]) for pid in pids}


def programs(node: Node, pids: dict[str, CpuSet]) -> set[str]:
    return set(node.run(f"cat {' '.join(f'/proc/{pid}/comm' for pid in pids)}").stdout.split())


def promised(node: Node, name: str, of: str) -> CpuSet:
    state = node.state()
    (uid,) = (entry["pod"]["metadata"]["uid"] for entry in state["entries"] if entry["pod"]["metadata"]["name"] == name)
    return CpuSet.parse(state["promises"]["pods"][uid]["cpus"][of])


@pytest.mark.long
@pytest.mark.configures
def test_containers_of_podman_run_where_their_services_are_pinned_to(node: Node) -> None:
    """A Quadlet, and a service that runs podman with `--cgroups=split`."""
    node.guest.put("/etc/containers/systemd/quadlet.container", QUADLET)
    node.guest.put("/run/systemd/system/split.service", SPLIT)
    node.run("systemctl daemon-reload")
    for name in ("quadlet.service", "split.service"):
        node.run(f"nodeagent pin {name} --cpus 2 --memory 64Mi --wait && systemctl start {name}", timeout_seconds=60)
        found = places(node, f"/sys/fs/cgroup/system.slice/{name}")
        assert "busybox" in programs(node, found)
        assert set(found.values()) == {promised(node, name, "unit")}
    assert promised(node, "quadlet.service", "unit").isdisjoint(promised(node, "split.service", "unit"))
    assert node.inspect()["differences"] == []
    node.run("systemctl stop quadlet split; nodeagent unpin quadlet.service split.service --wait", timeout_seconds=60)
    node.run("rm /etc/containers/systemd/quadlet.container /run/systemd/system/split.service; systemctl daemon-reload")


@pytest.mark.long
@pytest.mark.configures
def test_containers_of_podman_run_in_a_pod_and_on_its_cpus(node: Node) -> None:
    node.apply(pod("db", container("slot", None, cpu="2")))
    node.wait_running("db")
    own, cgroup = promised(node, "db", "slot"), node.cgroup("db", "slot")

    node.run(f"systemd-run --unit=inside nodeagent exec db slot -- podman run --cgroups=disabled {SLEEP}")
    node.until(
        lambda: places(node, cgroup) if "busybox" in programs(node, places(node, cgroup)) else None,
        lambda: node.run("journalctl -n 20 -o cat", check=False).stdout,
    )
    assert set(places(node, cgroup).values()) == {own}
    node.run("podman rm --all --force --time 0", timeout_seconds=60)
    node.until(lambda: not places(node, cgroup) or None, lambda: f"{places(node, cgroup)} are still there")

    told = "--cpuset-cpus $(nodeagent cpus db) --cpuset-mems $(nodeagent cpus db --mems)"
    (outside,) = node.run(f"podman run --detach {told} {SLEEP}", timeout_seconds=60).stdout.split()
    pid = node.run(f"podman inspect --format '{{{{.State.Pid}}}}' {outside}", timeout_seconds=60).stdout.strip()
    assert CpuSet.parse(node.allowed(int(pid))[0]) == own
    node.run("podman rm --all --force --time 0", timeout_seconds=60)
    node.delete("db")
    node.wait_gone("db")
