"""What README and tutorial tell an operator to type, typed on a node: word for word, to a pinned process and an explained refusal.

Commands that need no node run in tests/test_documentation.py and tests/test_readme.py.
"""

import re
import time
from collections.abc import Iterator

import pytest

from integration.demo import demonstrate
from integration.guest.base import base_of
from integration.guest.guest import Completed, Guest
from integration.node import Node, container, pod
from scripts.shown import DOCS, ON_A_NODE, ROOT, Shown, blocks

HOME = "/root"
SOURCE = "/usr/src/nodeagent"
"""Where guests have the project, without what only tests need."""
SUDO = '#!/bin/sh\nexec "$@"\n'
"""Guests have no other user than root, and no sudo."""
SLEEP = ["sleep", "infinity"]
VARYING = re.compile(r"(?<=^process    )\d+|\d+(?= (?:s|min) ago$)|[\d.]+(?= [MG]iB$)", re.MULTILINE)
"""What differs from run to run, or with the kernel's version: process ids, ages, and how much memory the kernel leaves."""
STATUSES = {
    "sudo nodeagent retry default/big": {1},  # nobody has made room
    "nodeagent explain default/big": {4},
    "nodeagent check": {0, 3},  # the guest's kernel is no pinned machine's
}
"""What else than 0 the README's commands end with here."""


@pytest.fixture
def node(two_sockets: Guest) -> Iterator[Node]:
    two_sockets.put("/usr/local/bin/sudo", SUDO, 0o755)
    yield Node(two_sockets)
    two_sockets.run("rm /usr/local/bin/sudo")


@pytest.mark.long
def test_the_tutorial_goes_as_it_is_written(node: Node) -> None:
    page = blocks((DOCS / "tutorial.md").read_text())
    assert sum(block.title == ON_A_NODE for block in page) >= 8
    for block in page:
        if block.is_file:
            node.guest.put(block.title if block.title.startswith("/") else f"{HOME}/{block.title}", block.text)
        elif block.title == ON_A_NODE:
            for command in block.commands():
                carry_out(node, command)


def test_the_demo_comes_to_its_end(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """`make demo`, but for the boot."""
    assert demonstrate(node)
    told = capsys.readouterr().out
    assert re.search(r"^/proc/\d+/cgroup:0::.*/worker\nCpus_allowed_list:\t2-3\n", told, re.MULTILINE)
    assert "\nkubelet_cpu_manager_exclusive_cpu_allocation_count 0 -> 5\n" in told
    assert "nothing moved: the same" in told


def test_the_readmes_first_pod_is_pinned_and_seen(node: Node) -> None:
    typed = readme("examples/guaranteed.yaml /etc/nodeagent/manifests")
    put, *looks, away = typed
    assert away.startswith("sudo rm")
    ended(node, put)
    state = node.wait_running("guaranteed")
    (promised,) = state["promises"]["pods"].values()
    ((worker,),) = (one["containers"] for one in node.inspect()["pods"])
    assert node.allowed(worker["pid"])[0] == promised["cpus"]["worker"]
    shown = [watched(node, line) if "--watch" in line else ended(node, line).stdout for line in looks]
    assert all("default/guaranteed" in one for one in shown)
    assert all(promised["cpus"]["worker"] in one for one in shown)
    ended(node, away)
    node.wait_gone("guaranteed")


@pytest.mark.long
def test_the_readmes_other_commands_do_what_it_says(node: Node) -> None:
    typed = readme("nodeagent topology ")
    node.run(f"cp {SOURCE}/examples/cgroup-only.yaml {SOURCE}/examples/guaranteed.yaml /etc/nodeagent/manifests")
    node.guest.put(f"{SOURCE}/pod.yaml", (ROOT / "examples" / "guaranteed.yaml").read_bytes())
    node.apply(pod("web", container("app", SLEEP, cpu="2")), pod("big", container("app", SLEEP, cpu="16")))
    node.wait_running("guaranteed", "web")
    node.wait(lambda state: any("refusal" in entry for entry in state["entries"]), "a refusal")
    said = {line.partition("#")[0].strip(): ended(node, line) for line in typed}
    assert "What would admit it" in said["nodeagent explain default/big"].stdout
    assert "more fit of: default/guaranteed" in said["nodeagent simulate --capacity -f pod.yaml"].stdout
    assert "still refused" not in said["sudo nodeagent release default/web"].stdout
    assert "pod_admitted" in said["journalctl -u nodeagent"].stdout
    node.run(f"rm {SOURCE}/pod.yaml {SOURCE}/node.json")


@pytest.mark.long
def test_the_readmes_ways_to_install_upgrade_and_uninstall_work(node: Node) -> None:
    guest = node.guest
    for wheel in base_of(guest.image.release).wheels.iterdir():
        guest.put(f"{HOME}/wheels/{wheel.name}", wheel.read_bytes())
    install, start, uninstall = readme("sudo make uninstall ")
    (upgrade,) = readme("systemctl reload nodeagent-launcher")
    node.apply(pod("stays", container("app", SLEEP, cpu="2")))
    node.wait_running("stays")
    before = node.footprint()
    for line in (install, start, upgrade):
        ended(node, line)
        assert node.footprint() == before, line
    refused = ended(node, uninstall, {2})
    assert "pods are running" in refused.stderr
    node.delete("stays")
    node.wait_gone("stays")
    ended(node, uninstall)
    assert node.run("command -v nodeagent; systemctl cat nodeagent", check=False).returncode != 0
    ended(node, install)
    ended(node, start)
    assert node.inspect()["pods"] == []


def readme(within: str) -> list[str]:
    """The lines of the one block that has this text."""
    found = [
        one.text for one in blocks((ROOT / "README.md").read_text()) if one.language == "sh" and within in one.text
    ]
    assert len(found) == 1, within
    return found[0].splitlines()


def ended(node: Node, line: str, expected: set[int] | None = None) -> Completed:
    """Type a line in the source's directory, and see it end as it should."""
    environment = f"export WHEELS={HOME}/wheels\n"
    done = node.guest.run(environment + line, check=False, timeout_seconds=300, cwd=SOURCE)
    statuses = expected or STATUSES.get(line.partition("#")[0].strip(), {0})
    assert done.returncode in statuses, f"{done.returncode} of $ {line}\n{done.stdout}{done.stderr}"
    return done


def watched(node: Node, line: str) -> str:
    """Type a line on a terminal, and q when something is drawn; what was drawn."""
    drawn = bytearray()
    request = node.guest.start(["bash", "-c", line], terminal=(40, 100, "xterm"), on_output=drawn.extend)
    deadline = time.monotonic() + node.guest.patience(60)
    while b"default/guaranteed" not in drawn and time.monotonic() < deadline:
        assert request.wait(0.2) is None, drawn.decode(errors="replace")
    request.send(b"q")
    assert request.wait(node.guest.patience(20)) == 0
    return drawn.decode(errors="replace")


def carry_out(node: Node, command: Shown) -> None:
    """Run a command of a page: it prints what is shown. What only looks is run again until it does, as what it shows takes a moment."""
    expected = VARYING.sub("N", command.output).splitlines()
    deadline = time.monotonic() + node.guest.patience(60)
    while True:
        done = node.run(command.command, check=False, timeout_seconds=60)
        printed = VARYING.sub("N", done.stdout + done.stderr)
        if [line.rstrip() for line in printed.splitlines()] == expected:
            return
        if not command.command.startswith("nodeagent inspect") or time.monotonic() > deadline:
            raise AssertionError(f"$ {command.command}\n{done.stdout}{done.stderr}\nis shown as:\n{command.output}")
