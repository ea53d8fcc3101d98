"""Pods are ended by hand, with the agent running and without it, and the node is released."""

import pytest

from integration.guest.guest import Guest
from integration.node import ROOT, STATE, Node, container, pod

SLEEP = ["sleep", "infinity"]
POLITE = ["sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done"]
STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def test_a_released_pod_ends_by_sigterm_and_stays_ended_over_a_restart(node: Node) -> None:
    node.apply(pod("polite", container("app", POLITE, cpu="2")), pod("other", container("app", SLEEP, cpu="1")))
    before = node.wait_running("polite", "other")
    cpus = before["promises"]["pods"]["uid-polite"]["cpus"]["app"]

    told = node.run("nodeagent release polite").stdout

    assert "default/polite app: SIGTERM" in told
    assert f"default/polite: ended; CPUs {cpus}" in told
    assert node.run(f"ls -d {ROOT}/poduid-polite", check=False).returncode != 0
    assert node.entry("polite")["refusal"][0] == "Released"
    node.restart_agent()
    assert node.entry("polite")["refusal"][0] == "Released"
    assert "deletingSinceMs" not in node.entry("other")
    node.run("nodeagent retry polite")
    node.wait_running("polite", "other")


@pytest.mark.long
def test_a_node_without_an_agent_is_given_back_whole(node: Node) -> None:
    node.apply(
        pod("stubborn", container("app", STUBBORN, cpu="2"), terminationGracePeriodSeconds=1),
        pod("burst", container("app", SLEEP, cpu="500m", limit_cpu="1")),
        pod("slot", container("slot", None, cpu="1")),
    )
    node.wait_running("stubborn", "burst", "slot")
    node.run("systemctl stop nodeagent")
    try:
        planned = node.run("nodeagent release --all --purge --dry-run").stdout
        assert f"{STATE}/nodeagent_state is removed" in planned
        assert len(node.state()["entries"]) == 3, "a dry run does nothing"

        node.run("rm /run/nodeagent-pods/launcher.sock")
        refused = node.run("nodeagent release --all", check=False)
        assert refused.returncode == 1
        assert "`systemctl start nodeagent-launcher`, then try again" in refused.stderr
        # as after its crash: what is started answers again
        node.run("systemctl kill -s KILL nodeagent-launcher; systemctl start nodeagent-launcher")
        told = node.run("nodeagent release --all").stdout
        assert "3 pods released" in told
        assert node.run(f"ls {ROOT} | grep -E '^pod|^burst|^best'", check=False).stdout == ""
        assert {entry["refusal"][0] for entry in node.state()["entries"]} == {"Released"}
        assert "uid-stubborn" not in node.state()["promises"]["pods"]

        purged = node.run("nodeagent release --all --purge").stdout
        assert f"removed {STATE}/nodeagent_state" in purged
        assert node.run(f"ls -A {STATE}").stdout == ""
        assert node.run("nodeagent release --all --purge").stdout, "again, with nothing left, is no error"
    finally:
        node.run("systemctl start nodeagent")
    node.wait_running("stubborn", "burst")
