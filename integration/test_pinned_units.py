"""`nodeagent pin`: services of systemd's with CPUs of their own, which systemd sets for the agent; on both Debian releases."""

import re

import pytest

from integration.isolation import differences, isolate, listed, settled
from integration.node import MANIFESTS, STATE, Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet

SLEEP = ["sleep", "infinity"]
UNITS = "/run/systemd/system"
BOTH = ("two_sockets", "four_nodes")
SYSTEM = "/sys/fs/cgroup/system.slice"


@pytest.fixture(params=BOTH)
def node(request: pytest.FixtureRequest) -> Node:
    return Node(request.getfixturevalue(request.param))


def unit(node: Node, name: str, *settings: str) -> None:
    """Make a service that does nothing, and doesn't start."""
    node.guest.put(f"{UNITS}/{name}", "\n".join(("[Service]", "ExecStart=sleep infinity", *settings, "")))
    node.run("systemctl daemon-reload")


def given(node: Node, name: str) -> CpuSet:
    """What the agent has promised to a unit."""
    return CpuSet.parse(promises(node.state(), name)["unit"])


def promises(state: Document, name: str) -> Document:
    (uid,) = (entry["pod"]["metadata"]["uid"] for entry in state["entries"] if entry["pod"]["metadata"]["name"] == name)
    found: Document = state["promises"]["pods"][uid]["cpus"]
    return found


def allowed(node: Node, name: str) -> CpuSet:
    """Where the main process of a unit may run."""
    pid = node.run(f"systemctl show --property=MainPID --value {name}").stdout.strip()
    return CpuSet.parse(node.allowed(int(pid))[0])


def told(node: Node, name: str) -> str:
    """What systemd was told of a unit's CPUs."""
    return node.run(f"systemctl show --property=AllowedCPUs --value {name}").stdout.strip()


def test_a_service_has_its_cpus_from_its_first_instruction_on_until_it_is_given_back(node: Node) -> None:
    unit(node, "db.service")
    unit(node, "own.service", "AllowedCPUs=0-7")
    node.run("systemctl start own")
    node.apply(pod("shared", container("app", SLEEP)))
    node.wait_running("shared")

    node.run("nodeagent pin db --cpus 2 --memory 64Mi --wait; nodeagent pin own.service --cpus 1 --memory 64Mi --wait")
    node.run("systemctl start db")

    db, own = given(node, "db.service"), given(node, "own.service")
    assert (len(db), len(own), db & own) == (2, 1, CpuSet())
    assert (allowed(node, "db.service"), allowed(node, "own.service")) == (db, own)
    (pid,) = node.pids(node.cgroup("shared", "app", qos="besteffort"))
    assert CpuSet.parse(node.allowed(pid)[0]) & (db | own) == CpuSet()
    assert node.inspect()["differences"] == []
    node.run("systemctl daemon-reload; systemctl restart db")
    node.kill_agent()
    assert allowed(node, "db.service") == db

    before = node.run("systemctl show --property=MainPID --value db own").stdout
    node.run("nodeagent pin db --cpus 4 --memory 64Mi --wait")
    more = given(node, "db.service")
    assert (len(more), more >= db, allowed(node, "db.service")) == (4, True, more)
    assert CpuSet.parse(node.allowed(pid)[0]) & (more | own) == CpuSet()
    node.run("nodeagent unpin db own --wait")

    assert (told(node, "db.service"), told(node, "own.service")) == ("", "0-7")
    assert allowed(node, "db.service") == CpuSet.parse(node.run("cat /sys/devices/system/cpu/online").stdout.strip())
    assert allowed(node, "own.service") == CpuSet.parse("0-7")
    assert node.run("systemctl show --property=MainPID --value db own").stdout == before, "its processes run on"
    node.run("systemctl stop db own")


def test_cpus_that_are_given_back_are_others_while_the_unit_is_not_active_and_never_where_it_starts(node: Node) -> None:
    first = "/run/db-first"
    started = f"ExecStart=sh -c 'grep Cpus_allowed_list /proc/self/status >{first}; exec sleep infinity'"
    unit(node, "db.service", "ExecStart=", started)
    node.run("systemctl start db; nodeagent pin db --cpus 2 --memory 64Mi --while-inactive give-back --wait")
    assert allowed(node, "db.service") == given(node, "db.service")
    cursor = node.cursor()
    node.run("systemctl stop db")
    node.reload()
    assert node.wait_log(cursor, "pod_rested")["pod"] == "units/db.service"

    free = node.inspect()["node"]["cpus"]["availableCount"]
    node.apply(pod("owner", container("app", SLEEP, cpu=str(free))))
    node.wait_running("owner")
    (pid,) = node.pids(node.cgroup("owner", "app"))
    own = CpuSet.parse(node.allowed(pid)[0])
    cursor = node.cursor()
    node.run(f"rm {first}; systemctl start db")

    def where_it_began() -> CpuSet:
        return CpuSet.parse(node.wait_line(first).split()[1])

    assert (len(own), where_it_began() & own) == (free, CpuSet())
    assert node.wait_log(cursor, "resume_refused")["reason"] == "OutOfcpu"
    assert allowed(node, "db.service") & own == CpuSet(), "it shares what is left"
    assert any("no room for pod units/db.service" in problem for problem in node.inspect()["node"]["problems"])
    assert node.inspect()["differences"] == []

    node.delete("owner")
    node.wait_log(cursor, "pod_resumed", of=["owner"])
    node.metrics()
    db = given(node, "db.service")
    assert (len(db), allowed(node, "db.service")) == (2, db)
    node.run(f"rm {first}; systemctl restart db")
    assert where_it_began() == db, "a restart is no end"

    cursor = node.cursor()
    node.run("systemctl stop db")
    node.reload()
    node.wait_log(cursor, "pod_rested")
    node.run(f"rm {first}; systemctl start db")
    assert where_it_began() >= db, "where everybody is that shares"
    node.wait_log(cursor, "pod_resumed")
    node.metrics()
    assert allowed(node, "db.service") == given(node, "db.service")
    node.run("nodeagent unpin db --wait")
    assert told(node, "db.service") == ""
    node.run("systemctl stop db")


def test_who_shares_leaves_whether_a_service_or_a_pod_comes(node: Node) -> None:
    unit(node, "web.service")
    node.run("systemctl start web; nodeagent pin web --cpus 500m --memory 64Mi --wait")
    shared = allowed(node, "web.service")

    node.apply(pod("owner", container("app", SLEEP, cpu="2")))
    node.wait_running("owner")

    (pid,) = node.pids(node.cgroup("owner", "app"))
    own = CpuSet.parse(node.allowed(pid)[0])
    assert own <= shared
    assert own != shared
    assert allowed(node, "web.service") == shared - own
    node.delete("owner")
    node.wait_gone("owner")
    node.until(
        lambda: allowed(node, "web.service") == shared or None, lambda: f"web is on {allowed(node, 'web.service')}"
    )

    node.run("nodeagent release --all")
    assert told(node, "web.service") == ""
    node.run("nodeagent unpin web; systemctl stop web")
    node.clear()


def test_what_systemd_is_told_by_others_is_put_right(node: Node) -> None:
    unit(node, "db.service")
    node.run("systemctl start db; nodeagent pin db --cpus 2 --memory 64Mi --wait")
    db = given(node, "db.service")
    cursor = node.cursor()

    node.run("systemctl set-property --runtime db.service AllowedCPUs=0; systemctl restart nodeagent")

    assert node.wait_log(cursor, "ready")
    assert allowed(node, "db.service") == db
    node.run("nodeagent unpin db --wait; systemctl stop db")


def test_when_the_state_is_lost_a_unit_goes_back_to_what_it_had_before(node: Node) -> None:
    for name in ("kept.service", "left.service"):
        unit(node, name, "AllowedCPUs=0-7")
        node.run(f"systemctl start {name}; nodeagent pin {name} --cpus 1 --memory 64Mi --wait")
    kept = given(node, "kept.service")
    cursor = node.cursor()

    node.run(f"systemctl stop nodeagent; rm {STATE}/*_state {MANIFESTS}/left.service.yaml; systemctl start nodeagent")

    assert node.wait_log(cursor, "ready")
    node.metrics()
    assert (given(node, "kept.service"), allowed(node, "kept.service")) == (kept, kept)
    assert (told(node, "left.service"), allowed(node, "left.service")) == ("0-7", CpuSet.parse("0-7"))
    node.run("nodeagent unpin kept --wait")
    assert (told(node, "kept.service"), allowed(node, "kept.service")) == ("0-7", CpuSet.parse("0-7"))
    node.run("systemctl stop kept left")


@pytest.mark.configures
def test_other_services_and_the_rest_of_the_host_leave_its_cpus_and_come_back(node: Node) -> None:
    isolate(node, "partition", "none")
    for name in ("db.service", "beside.service"):
        unit(node, name)
    node.run("systemctl start db beside")
    before, units = listed(node), others(node)

    node.run("nodeagent pin db --cpus 2 --memory 64Mi --wait")
    node.apply(pod("owner", container("app", SLEEP, cpu="2")))
    node.wait_running("owner")
    node.metrics()

    db = given(node, "db.service")
    (pid,) = node.pids(node.cgroup("owner", "app"))
    own = CpuSet.parse(node.allowed(pid)[0])
    assert allowed(node, "db.service") == db
    assert allowed(node, "beside.service") & (db | own) == CpuSet()
    assert CpuSet.parse(node.allowed(1)[0]) & (db | own) == CpuSet()
    assert node.inspect()["differences"] == []
    assert node.inspect()["node"]["problems"] == []

    node.delete("owner")
    node.run("nodeagent unpin db --wait")
    node.wait_gone("owner")
    assert differences(before, settled(node)) == {}
    # systemd is told of all CPUs before it is told of none; if it doesn't answer in time, it is told again at a later sync
    node.until(lambda: others(node) == units or None, lambda: f"as before, {units}: {others(node)}")
    node.run("systemctl stop db beside")


SLICE = "/sys/fs/cgroup/nodeagent.slice/cpuset.cpus.exclusive"
GIVE_BACK = "nodeagent release --host-settings"
WAYS = ("launcher killed", "pods first", "all killed", "power cut")


@pytest.mark.configures
@pytest.mark.parametrize(
    ("node", "ways"),
    [
        ("two_sockets", ("launcher killed", "all killed")),
        ("four_nodes", ("pods first", "power cut")),
        *(pytest.param(kind, WAYS, marks=pytest.mark.long) for kind in BOTH),
    ],
    indirect=["node"],
)
def test_whatever_way_everything_is_stopped_everything_goes_back(node: Node, ways: tuple[str, ...]) -> None:
    """Usually, each way is gone on one of the releases; in the long form on both."""
    isolate(node, "partition", "affinity")
    own = {"db.service": "", "own.service": "0-7", "off.service": "0-7"}

    def make_units() -> None:
        for name in ("db.service", "own.service", "off.service"):
            unit(node, name, f"AllowedCPUs={own[name]}", "Slice=extra.slice" if name == "db.service" else "")

    make_units()
    node.run("systemctl start db own")
    own["extra.slice"] = ""
    before = listed(node)
    every = CpuSet.parse(node.run("cat /sys/devices/system/cpu/online").stdout.strip())
    # beside the first, the host's isolation narrows the second, which has CPUs of its own
    node.run("for name in db own off; do nodeagent pin $name --cpus 1 --memory 64Mi --wait; done")
    node.apply(pod("owner", container("app", SLEEP, cpu="2")))

    def told_units() -> list[str]:
        return node.run("systemctl show --property=AllowedCPUs --value db own off").stdout.split()

    def occupy() -> None:
        """Take CPUs in all ways that the host knows of, as the manifests say."""
        node.run("systemctl start nodeagent db own")
        node.wait_running("owner")
        node.metrics()
        node.until(
            lambda: [len(CpuSet.parse(cpus)) for cpus in told_units()] == [1, 1, 1] or None,
            lambda: f"a CPU for each of the units: {told_units()}",
        )

    def is_whole() -> None:
        assert {name: told(node, name) for name in own} == own
        assert node.run(f"cat {SLICE}", check=False).stdout.strip() == ""
        assert differences(before, listed(node)) == {}

    if "launcher killed" in ways:
        occupy()
        node.run("systemctl kill -s KILL nodeagent-launcher; systemctl stop nodeagent nodeagent-pods")
        is_whole()
        assert allowed(node, "db.service") == every
        assert node.run(GIVE_BACK).stdout == "nothing to restore\n"
    if "pods first" in ways:
        occupy()
        node.run("systemctl stop nodeagent-pods; systemctl stop nodeagent")
        is_whole()
    if "all killed" in ways:
        occupy()  # and a unit around one of them ends before, which is told of its CPUs all the same
        node.run(
            "systemctl stop nodeagent db extra.slice; systemctl kill -s KILL nodeagent-launcher nodeagent-pods;"
            " systemctl mask --runtime nodeagent-launcher"
        )
        node.run(f"timeout -s KILL 2 {GIVE_BACK}", check=False)  # it dies at some moment, and another goes on
        assert node.run(GIVE_BACK).stdout.startswith(("restored", "nothing"))
        assert {name: told(node, name) for name in own} == own
        node.run("systemctl unmask --runtime nodeagent-launcher; systemctl start db; systemctl stop nodeagent-pods")
        is_whole()
    if "power cut" in ways:
        occupy()
        cut_power_while_it_gives_back(node)
        make_units()
    node.run("systemctl start nodeagent; nodeagent unpin db own off --wait")
    node.delete("owner")
    node.wait_gone("owner")
    node.metrics()
    assert {name: told(node, name) for name in own} == own


def cut_power_while_it_gives_back(node: Node) -> None:
    """Nothing is left to be given back after the boot."""
    node.run(f"sync; systemctl stop nodeagent; {GIVE_BACK} & sleep 1")
    node.guest.power_cut()
    node.guest.wait_multi_user()
    assert node.run(GIVE_BACK).stdout == "nothing to restore\n"
    assert node.run(f"cat {SLICE}", check=False).stdout.strip() == ""


def others(node: Node) -> dict[str, str]:
    """What systemd was told of every service's CPUs."""
    text = node.run("systemctl show --property=Id,AllowedCPUs '*.service'").stdout
    blocks = (dict(re.findall(r"^(\w+)=(.*)$", block, re.MULTILINE)) for block in text.split("\n\n"))
    return {block["Id"]: block["AllowedCPUs"] for block in blocks if block.get("AllowedCPUs")}
