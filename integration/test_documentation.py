"""What README and docs/ show an operator to type, typed on a node by an ordinary user, word for word; UNTYPED has what isn't, and why.

Commands that need no node run in tests/project/test_documentation.py and tests/project/test_readme.py.
"""

import re
from collections.abc import Iterator

import pytest

from integration.demo import demonstrate
from integration.guest.guest import Guest
from integration.installed import traces, uninstall
from integration.node import ROOT as CGROUPS, Node, container, pod
from integration.pages import INSTALLATION, ON_NODE, blocks_of, is_untyped
from integration.reader import HOME, INSTALL, JOIN, Reader
from scripts.shown import DOCS, ON_A_NODE, ROOT, Shown, blocks

CHECKOUT = f"{HOME}/checkout"
SLEEP = ["sleep", "infinity"]
VARYING = re.compile(r"(?<=^process    )\d+|\d+(?= (?:s|min) ago$)|[\d.]+(?= [MG]iB$)", re.MULTILINE)
"""What differs from run to run, or with the kernel's version: process ids, ages, and how much memory the kernel leaves."""
STATUSES = {
    "sudo nodeagent retry default/big": frozenset({4}),  # nobody has made room
    "nodeagent explain default/big": frozenset({4}),
    "nodeagent simulate --compare now.yaml new.yaml": frozenset(
        {0, 2}
    ),  # whether decisions differ depends on the node's pods
    "nodeagent fleet inspect node.json": frozenset({2}),  # default/big is still refused
    "nodeagent inspect --machine node.json": frozenset({0, 2}),
    "nodeagent check": frozenset({0, 2}),  # the guest's kernel is no pinned machine's
    "sudo nodeagent check --fix": frozenset({0, 2}),
    "sudo nodeagent interference --seconds 3": frozenset({0, 2}),  # nobody keeps the host's processes away
    "sudo nodeagent interference default/forwarder --seconds 3": frozenset({0, 2}),
}
"""Exit statuses other than 0 that are expected here."""
SMALLER = (
    ("memory: 4Gi", "memory: 64Mi"),
    (", hugepages-1Gi: 2Gi", ""),
    ("echo 512 ", "echo 4 "),
    ("--frames 30", "--frames 1"),
    ("--seconds 3", "--seconds 1"),
    ("--seconds 2", "--seconds 1"),
)
"""Guests have 2 GiB of memory, no pages of 1 GiB, and little time."""
FILES = {
    "bench": "#!/bin/sh\n",
    "now.yaml": (ROOT / "examples" / "config.yaml").read_text(),
    "new.yaml": (ROOT / "examples" / "strict-reservation" / "config.yaml").read_text(),
    "config.yaml": (ROOT / "examples" / "config.yaml").read_text(),
    "pod.yaml": (ROOT / "examples" / "guaranteed.yaml").read_text(),
    "pods/pod.yaml": (ROOT / "examples" / "guaranteed.yaml").read_text(),
}
"""What the pages expect the reader to have; files that a page shows itself take precedence."""
WEB = "4c1b9a"
"""UID of the pod that the pages call default/web."""
PROGRAMS = ("forwarder", "forwarder-control")


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


@pytest.fixture
def reader(node: Node) -> Iterator[Reader]:
    reader = Reader(node)
    yield reader
    reader.leave()


@pytest.fixture(scope="module")
def members() -> dict[Guest, Reader]:
    """By guest: the reader of all pages, who may query the agent."""
    return {}


@pytest.fixture
def member(node: Node, members: dict[Guest, Reader]) -> Reader:
    if node.guest not in members:
        members[node.guest] = Reader(node)
        members[node.guest].ends(JOIN)
    return members[node.guest]


def test_the_tutorial_goes_as_it_is_written(reader: Reader) -> None:
    page = blocks((DOCS / "tutorial.md").read_text())
    assert sum(block.title == ON_A_NODE for block in page) >= 8
    assert JOIN in "".join(block.text for block in page), "the rest of its install block is README's"
    reader.ends(JOIN)
    for block in page:
        if block.is_file and block.title.startswith("/"):
            reader.node.guest.put(block.title, block.text)
        elif block.is_file:
            reader.has(block.title, block.text)
        elif block.title == ON_A_NODE:
            for command in block.commands():
                carry_out(reader, command)


@pytest.mark.main_job
def test_the_demo_comes_to_its_end(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """`make demo`, except the boot."""
    assert demonstrate(node)
    told = capsys.readouterr().out
    assert re.search(r"^/proc/\d+/cgroup:0::.*/worker/payload\nCpus_allowed_list:\t2-3\n", told, re.MULTILINE)
    assert "\nkubelet_cpu_manager_exclusive_cpu_allocation_count 0 -> 5\n" in told
    assert "nothing moved: the same" in told


@pytest.mark.reinstalls
def test_nodeagent_is_installed_and_used_and_uninstalled_as_it_is_written(
    node: Node, request: pytest.FixtureRequest
) -> None:
    """Install, the first job and pod, the everyday commands, upgrade, and uninstall: every block, in its order.

    The upgrade happens under a pod of ours, which the page promises to leave alone.
    The long form begins on a node where nodeagent never was. The short one has what `make install` put into the guest's image, which takes
    seconds (see test_install.py), and types the rest of each line.
    """
    from_nothing = request.config.getoption("--long")
    shown = [block for page in INSTALLATION for block in blocks_of(page)]
    assert sum(INSTALL in block.text for block in shown) == 2, "the installation and the upgrade"
    reader = Reader(node)
    if from_nothing:
        uninstall(node)
        assert traces(node) == []
        reader.has_wheels()
    node.run(f"cp -r /usr/src/nodeagent {CHECKOUT} && chown -R reader: {CHECKOUT}")
    node.guest.put("/run/systemd/system/postgresql.service", "[Service]\nExecStart=sleep infinity\n")
    node.run("systemctl daemon-reload")
    said = {}
    for block in shown:
        for line in block.text.splitlines():
            typed = line.partition("  #")[0].strip()
            entered = line if from_nothing else line.replace(INSTALL, "command -v nodeagent")
            before = under_a_pod(node) if "systemctl restart" in typed else None
            if "--watch" in typed:
                said[typed] = reader.watches(entered, "default/guaranteed", directory=CHECKOUT)
            else:
                said[typed] = reader.ends(entered, STATUSES.get(typed, frozenset({0})), directory=CHECKOUT).stdout
            if before is not None:
                assert node.footprint() == before
                assert (
                    "pods are running" in reader.ends("sudo make uninstall", frozenset({2}), directory=CHECKOUT).stderr
                )
                node.delete("stays")
                node.wait_gone("stays")
            if typed == "sudo nodeagent apply --wait examples/guaranteed.yaml":
                assert_pinned(node)
    for looked in ("nodeagent inspect", "nodeagent inspect default/guaranteed", "nodeagent inspect --watch"):
        assert "default/guaranteed" in said[looked]
    assert "What would admit it" in said["nodeagent explain default/big"]
    assert "default/guaranteed: ended; CPUs" in said["sudo nodeagent release default/guaranteed"]
    assert "more fit of: default/guaranteed" in said["nodeagent simulate --capacity -f examples/guaranteed.yaml"]
    assert "pod_admitted" in said["sudo journalctl -u nodeagent"]
    assert node.run("command -v nodeagent; systemctl cat nodeagent", check=False).returncode != 0
    reader.leave()


def under_a_pod(node: Node) -> str:
    node.apply(pod("stays", container("app", SLEEP, cpu="2")))
    node.wait_running("stays")
    return node.footprint()


def assert_pinned(node: Node) -> None:
    found = {one["name"]: one for one in node.inspect()["pods"]}
    ((worker,),) = (one["containers"] for name, one in found.items() if name.endswith("guaranteed"))
    promised = node.state()["promises"]["pods"][node.entry("guaranteed")["pod"]["metadata"]["uid"]]["cpus"]["worker"]
    assert node.allowed(worker["pid"])[0] == promised


OFTEN_ENOUGH = frozenset(
    {"how-to/fleet.md", "how-to/node-resource-topology.md", "how-to/job.md", "how-to/latency-test.md"}
)
"""Pages whose commands tests of their own run, but for the few that need a node: these are typed in the long form."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] if page in OFTEN_ENOUGH else []) for page in sorted(ON_NODE)]
)
def test_a_page_is_typed_as_it_is_written(page: str, member: Reader) -> None:
    """With amounts that a guest has: see SMALLER."""
    reader, node = member, member.node
    web = pod("web", container("app", SLEEP, cpu="2"))
    web["metadata"]["uid"] = WEB
    node.apply(web)
    node.wait_running("web")
    (pid,) = node.pids(f"{CGROUPS}/pod{WEB}/app")
    shown = {block.title: block.text for block in blocks((DOCS / page).read_text()) if block.is_file}
    reader.has_only({name: fitting(text) for name, text in (FILES | shown).items()}, 0o755)
    for name in PROGRAMS:
        node.guest.put(f"/usr/local/bin/{name}", "#!/bin/sh\nexec sleep infinity\n", 0o755)
    for block in blocks_of(page):
        if is_untyped(page, block):
            continue
        for line in block.text.splitlines():
            typed = fitting(line).replace("/proc/PID/", f"/proc/{pid}/")
            if typed.endswith("--watch"):
                assert reader.watches(typed, "default/")
            else:
                reader.ends(typed, STATUSES.get(line.partition("  #")[0].strip(), frozenset({0})))
    node.run("for one in /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages; do echo 0 >$one; done")


def fitting(text: str) -> str:
    for large, small in SMALLER:
        text = text.replace(large, small)
    return text


def carry_out(reader: Reader, command: Shown) -> None:
    """Type a command of a page: it prints what is shown. Commands that only look are repeated until they do, because their result takes a
    moment.
    """
    expected = VARYING.sub("N", command.output).splitlines()
    printed = ""

    def look() -> bool | None:
        nonlocal printed
        done = reader.types(command.command)
        printed = VARYING.sub("N", done.stdout + done.stderr)
        return [line.rstrip() for line in printed.splitlines()] == expected or None

    def problem() -> str:
        return f"$ {command.command}\n{printed}\nis shown as:\n{command.output}"

    if command.command.startswith("nodeagent inspect"):
        reader.node.until(look, problem)
    else:
        assert look(), problem()
