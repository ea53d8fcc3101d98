"""The manifest directory as people use it: editors, half-written files, wrong ones, several pods in one."""

import json
import re

import pytest

from integration.guest.guest import Guest
from integration.node import MANIFESTS, Node, container, pod

SLEEP = ["sleep", "infinity"]


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def test_a_slow_writer_is_waited_for(node: Node) -> None:
    text = json.dumps(pod("slowly", container("app", SLEEP, cpu="1")))
    cursor = node.cursor()
    node.guest.put("/run/whole.json", text)
    # open, and written in three parts with the file open all the time
    node.run(
        f"exec 3>{MANIFESTS}/slowly.json; head -c 40 /run/whole.json >&3; sleep 1.5;"
        " tail -c +41 /run/whole.json | head -c 60 >&3; sleep 1.5; tail -c +101 /run/whole.json >&3"
    )
    node.wait_running("slowly")
    assert [line for line in node.log(cursor) if line["event"] == "manifest_refused"] == []


def test_a_wrong_file_is_reported_once_and_disturbs_nobody(node: Node) -> None:
    node.apply(pod("good", container("app", SLEEP, cpu="2")))
    node.wait_running("good")
    before, cursor = node.footprint(), node.cursor()
    wrong = pod("wrong", container("app", SLEEP, cpu="two"))
    node.guest.put(f"{MANIFESTS}/wrong.json", json.dumps(wrong))

    line = node.wait_log(cursor, "manifest_refused")

    assert "wrong.json" in line["source"]
    assert "two" in json.dumps(line["problems"])
    reconciles = node.metrics()["nodeagent_reconcile_duration_seconds_count"]
    node.wait_metric("nodeagent_reconcile_duration_seconds_count", reconciles + 1)
    assert len([one for one in node.log(cursor) if one["event"] == "manifest_refused"]) == 1
    assert node.metrics()["nodeagent_manifest_problems"] == 1
    assert node.footprint() == before
    node.apply(pod("wrong", container("app", SLEEP, cpu="2")))
    node.wait_running("wrong")


def test_a_running_pod_survives_its_manifests_corruption(node: Node) -> None:
    node.apply(pod("kept", container("app", SLEEP, cpu="2")))
    node.wait_running("kept")
    before, cursor = node.footprint(), node.cursor()
    node.guest.put(f"{MANIFESTS}/kept.json", "{ this is no longer")
    node.wait_log(cursor, "manifest_refused")
    assert node.footprint() == before


def test_several_pods_in_one_yaml_and_a_changed_manifest_is_a_new_pod(node: Node) -> None:
    text = "\n---\n".join(json.dumps(pod(f"multi-{n}", container("app", SLEEP, cpu="1"))) for n in (1, 2))
    node.put_manifest("multi.yaml", text, "multi-1", "multi-2")
    node.wait_running("multi-1", "multi-2")
    (old,) = node.pids(node.cgroup("multi-1", "app"))

    changed = pod("multi-1", container("app", SLEEP, cpu="3"))
    changed["metadata"]["uid"] = "uid-multi-1b"
    second = json.dumps(pod("multi-2", container("app", SLEEP, cpu="1")))
    (same,) = node.pids(node.cgroup("multi-2", "app"))
    node.put_manifest("multi.yaml", f"{json.dumps(changed)}\n---\n{second}", "multi-1")
    node.wait(
        lambda s: {e["pod"]["metadata"]["uid"] for e in s["entries"]} == {"uid-multi-1b", "uid-multi-2"},
        "the changed pod in the old one's place",
        of=("multi-1",),
    )
    node.wait_running("multi-1", "multi-2")
    assert node.run(f"test -e /proc/{old}", check=False).returncode == 1
    assert node.pids(node.cgroup("multi-2", "app")) == [same]


def test_reload_takes_a_new_configuration_and_refuses_a_wrong_one(node: Node) -> None:
    node.apply(pod("steady", container("app", SLEEP, cpu="2")))
    node.wait_running("steady")
    before = node.footprint()
    config = node.guest.get("/etc/nodeagent/config.yaml").decode()
    try:
        cursor = node.cursor()
        node.guest.put(
            "/etc/nodeagent/config.yaml", config.replace("fileCheckFrequency: 20s", "fileCheckFrequency: soon")
        )
        assert node.run("systemctl reload nodeagent", check=False).returncode != 0
        assert any("fileCheckFrequency" in line and "soon" in line for line in node.journal(cursor))
        assert not [line for line in node.log(cursor) if line["event"].endswith(("reloaded", "reload_refused"))]
        node.wait_log(cursor, "configuration_refused")
        status = node.run(
            "systemctl status --no-pager --lines=0 nodeagent"
        ).stdout  # where `systemctl reload` points to
        assert re.search(r'Status: ".*soon', status), status
        node.run("systemctl kill -s HUP nodeagent")
        refused = node.wait_log(cursor, "reload_refused")
        assert "soon" in json.dumps(refused)

        cursor = node.cursor()
        node.guest.put("/etc/nodeagent/config.yaml", config.replace("127.0.0.1:9753", "127.0.0.1:9754"))
        assert node.run("systemctl reload nodeagent", check=False).returncode != 0
        assert any("need a restart: metrics_bind_address" in line for line in node.journal(cursor))

        cursor = node.cursor()
        node.guest.put(
            "/etc/nodeagent/config.yaml", config.replace("fileCheckFrequency: 20s", "fileCheckFrequency: 7s")
        )
        node.run("systemctl reload nodeagent")
        node.wait_log(cursor, "configuration_reloaded")
        assert node.footprint() == before
    finally:
        node.guest.put("/etc/nodeagent/config.yaml", config)
        node.run("systemctl reload nodeagent")
