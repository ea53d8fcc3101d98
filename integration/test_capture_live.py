"""A capture of a real node: it gives the same answers elsewhere as the node, holds no secret, and a fresh node passes `check`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from integration.guest.guest import Guest
from integration.node import Node, container, pod
from nodeagent.cli.main import main

FILE = "/root/node.json"
SECRET = "not-for-a-bug-report"


def test_a_captured_node_answers_as_it_did(
    two_sockets: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*words: str) -> str:
        """What a command says of the capture, on this host."""
        capsys.readouterr()
        assert main([*words, "--machine", str(here)]) == 0
        return capsys.readouterr().out

    node, here = Node(two_sockets), tmp_path / "node.json"
    hiding = container("app", ["sh", "-c", f": {SECRET}; exec sleep infinity"], cpu="2")
    hiding["env"] = [{"name": "TOKEN", "value": SECRET}]
    node.apply(pod("keeper", hiding), pod("sharing", container("slot", None)))
    node.wait_running("keeper", "sharing")
    shown = node.inspect()
    node.run(f"nodeagent capture --out {FILE}")
    captured = two_sockets.get(FILE).decode()
    assert SECRET not in captured
    here.write_text(captured)
    again = json.loads(asked("inspect", "-o", "json", "--no-host-processes"))
    assert again["pods"] == shown["pods"]
    assert again["node"].pop("copiedAt"), "the capture says when it was made"
    assert again["node"] | {"copied": False, "copiedAt": None} == shown["node"]
    assert again["differences"] == []
    for form in ("text", "svg", "hwloc-xml"):
        drawn = node.run(f"nodeagent topology -o {form}").stdout
        assert asked("topology", "-o", form) == drawn
        assert "default/keeper app" in drawn


def test_a_fresh_node_is_fit_and_what_can_be_mended_is(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    node.run("sysctl -q -w kernel.numa_balancing=1", check=False)
    before = node.run("nodeagent check -o json")
    levels = {check["check"]: check["level"] for check in json.loads(before.stdout)["checks"]}
    fit = ("kernel", "cgroup-v2", "controllers", "delegation", "configuration", "irqbalance", "kubelet")
    assert {name: levels[name] for name in fit} == dict.fromkeys(fit, "ok")
    assert levels["host-isolation"] == "warning", "the host's processes may run on exclusive CPUs"
    balances = node.run("cat /proc/sys/kernel/numa_balancing", check=False).stdout.strip() == "1"
    assert (levels["numa-balancing"] == "warning") == balances
    after = node.run("nodeagent check --fix -o json")
    assert ("fixed numa-balancing" in after.stderr) == balances
    assert {check["level"] for check in json.loads(after.stdout)["checks"] if check["check"] == "numa-balancing"} == {
        "ok"
    }
    assert node.run("nodeagent check --machine /etc/hostname", check=False).returncode == 1


def test_each_fix_of_a_kernel_setting_works_as_it_is_told_and_so_does_its_way_back(two_sockets: Guest) -> None:
    """The commands are run as they stand there. Some kernels don't have every setting."""
    node = Node(two_sockets)
    node.run("nodeagent check --undo", check=False)  # what another test has fixed since the guest's boot

    def examine() -> dict[str, Any]:
        checks = json.loads(node.run("nodeagent check --for benchmark -o json", check=False).stdout)["checks"]
        return {check["check"]: check for check in checks}

    before = examine()
    fixes = {name: check["fix"] or "" for name, check in before.items()}
    told = {name: fix.partition(" # ") for name, fix in fixes.items() if "undo: " in fix and "GRUB" not in fix}
    assert {"thp", "timer-migration", "perf-rate", "stat-interval"} <= told.keys()
    missing = {name for name in told if node.run(f"command -v {told[name][0].split()[1]}", check=False).returncode}
    for name, (fix, _, _) in told.items():
        if name not in missing:
            node.run(fix)
    fixed = examine()
    assert {name: fixed[name]["level"] for name in told if name not in missing} == dict.fromkeys(
        told.keys() - missing, "ok"
    )
    for name, (_, _, back) in told.items():
        if name not in missing:
            node.run(back.partition("undo: ")[2])
    assert examine() == before
    assert node.run("setarch -R grep -c . /proc/self/maps").stdout != "0\n", "one command with fixed addresses"

    said = node.run("nodeagent check --for benchmark --fix -o json", check=False).stderr
    by_itself = set(re.findall(r"fixed ([a-z-]+)", said))
    assert by_itself <= told.keys()
    assert {examine()[name]["level"] for name in by_itself} == {"ok"}
    node.run("nodeagent check --for benchmark --undo", check=False)
    assert examine() == before
