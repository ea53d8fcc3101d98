"""An upgrade from the former release and the way back, under running pods and as `make install` does them."""

import pytest

from integration.former_release import INSTALL_SECONDS, installs, put_former_release
from integration.guest.guest import Guest
from integration.node import CONFIG, ROOT, STATE, Node, container, pod
from integration.test_pinned_units import unit

SLEEP = ["sleep", "infinity"]
STATUSES = """
for procs in $(find %s /sys/fs/cgroup/system.slice/db.service -name cgroup.procs); do
    for pid in $(cat $procs); do
        echo "$pid $(cat /proc/$pid/comm) $(awk '/^(Cpus|Mems)_allowed_list/ {print $2}' /proc/$pid/status | paste -sd' ')"
    done
done | sort
"""


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    """A node with the former release and its sample configuration."""
    guest: Guest = request.getfixturevalue(request.param)
    node = Node(guest)
    node.run("systemctl stop nodeagent nodeagent-pods; rm -r /etc/nodeagent /var/lib/nodeagent*")
    put_former_release(node)
    install(node, "former")
    node.run("systemctl enable --now nodeagent")
    return node


def install(node: Node, sources: str) -> None:
    """Install these sources over those that are there, without the restart."""
    node.run(installs(sources), timeout_seconds=INSTALL_SECONDS)


def upgrade(node: Node, sources: str) -> None:
    """Install these sources and switch to them, as `make install` says; returns when the agent has done all that follows from its state."""
    install(node, sources)
    node.run("systemctl restart nodeagent && systemctl reload nodeagent-launcher", timeout_seconds=60)
    node.metrics()


def running(node: Node) -> str:
    """Every process of the pods and of the pinned unit, with the CPUs and memory nodes that the kernel lets it use."""
    return node.run(STATUSES % ROOT).stdout


@pytest.mark.long
@pytest.mark.reinstalls
def test_pods_keep_what_they_have_over_an_upgrade_and_a_way_back_that_is_refused(node: Node) -> None:
    node.run(
        f"sed -i 's/^hostIsolation: .*/hostIsolation: partition/; s/^interruptIsolation: .*/interruptIsolation: affinity/' {CONFIG}"
    )
    node.reload()
    unit(node, "db.service")
    node.run("systemctl start db")
    node.run("nodeagent pin db.service --cpus 2 --memory 64Mi --wait")
    node.apply(
        pod("one", container("app", SLEEP, cpu="2")),
        pod("burst", container("app", SLEEP, cpu="100m", limit_cpu="200m")),
        pod("mixed", container("app", SLEEP, cpu="3"), container("side", SLEEP, cpu="500m")),
    )
    node.wait_running("one", "burst", "mixed")
    node.metrics()
    before = running(node)
    assert before.count(" sleep ") == 6, f"those of the pods, the unit and nodeagent-pods.service:\n{before}"

    upgrade(node, "nodeagent")
    assert running(node) == before
    shown = node.run("nodeagent inspect --no-host-processes", check=False)
    assert shown.returncode == 0, shown.stdout
    node.apply(pod("new", container("app", SLEEP, cpu="1")))
    node.wait_running("new")
    node.metrics()
    before = running(node)

    upgrade(node, "former")
    assert running(node) == before, "it reads a state that it would have written, too"

    upgrade(node, "nodeagent")
    node.run(f"systemctl stop nodeagent; sed -i 's/^stateRecovery: .*/stateRecovery: strict/' {CONFIG}")
    node.run(f'sed -i \'1s/"version":1/"version":2/\' {STATE}/nodeagent_state')
    install(node, "former")
    cursor = node.cursor()
    assert node.run("systemctl start nodeagent", check=False, timeout_seconds=30).returncode != 0
    refused = "\n".join(node.journal(cursor))
    assert "format version 2 was written by a later nodeagent; this nodeagent reads versions up to 1" in refused
    assert "install the nodeagent that wrote it" in refused
    assert running(node) == before

    node.run("systemctl reset-failed")
    upgrade(node, "nodeagent")
    assert running(node) == before
    assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 0
