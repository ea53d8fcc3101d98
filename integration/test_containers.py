"""What kubelet's users expect of containers: order, restarts, ends and exit codes, even if agent or launcher die."""

import pytest

from integration.guest.guest import Guest
from integration.node import ROOT, STATE, Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def status(state: Document, pod_name: str, container_name: str) -> Document:
    """The state's status of a container; empty before its pod has been decided on."""
    entry = next((e for e in state["entries"] if e["pod"]["metadata"]["name"] == pod_name), None)
    found: Document = next((c for c in entry["containers"] if c["name"] == container_name), {}) if entry else {}
    return found


def test_init_containers_run_one_by_one_then_sidecar_then_app(node: Node) -> None:
    node.run("rm -f /run/order")
    note = "echo $0 $(grep Cpus_allowed_list /proc/self/status) >>/run/order"
    stay = f"{note}; exec sleep infinity"
    node.apply(
        pod(
            "ordered",
            container("app", ["sh", "-c", stay, "app"], cpu="2"),
            init=(
                container("first", ["sh", "-c", f"sleep 0.3; {note}", "first"], cpu="2"),
                {**container("side", ["sh", "-c", stay, "side"], cpu="1"), "restartPolicy": "Always"},
                container("last", ["sh", "-c", note, "last"], cpu="1"),
            ),
        )
    )
    state = node.wait_running("ordered")
    lines = node.run("until [ $(wc -l </run/order) -ge 4 ]; do sleep 0.05; done; cat /run/order").stdout.split("\n")[:4]
    cpus = state["promises"]["pods"]["uid-ordered"]["cpus"]
    assert [line.split()[0] for line in lines] == ["first", "side", "last", "app"]
    told = {line.split()[0]: line.split()[2] for line in lines}
    assert (told["side"], told["app"]) == (cpus["side"], cpus["app"])
    assert status(state, "ordered", "first")["exit"][1] == 0
    assert "exit" not in status(state, "ordered", "side")


def test_a_container_that_fails_is_started_again_after_its_back_off(node: Node) -> None:
    node.run("rm -f /run/tries")
    node.apply(pod("flaky", container("app", ["sh", "-c", "date +%s.%N >>/run/tries; exit 3"], cpu="1")))

    state = node.wait(lambda s: status(s, "flaky", "app").get("attempt", 0) == 3, "the third start", of=("flaky",))
    tries = node.run("until [ $(wc -l </run/tries) -ge 3 ]; do sleep 0.1; done; cat /run/tries").stdout.split()

    assert status(state, "flaky", "app")["lastExit"][1] == 3
    assert float(tries[2]) - float(tries[1]) >= 10, "kubelet restarts once at once, then waits for 10 s"


def test_what_the_kernel_killed_for_memory_is_called_so(node: Node) -> None:
    grow = ["/opt/nodeagent/bin/python", "-c", "x = bytearray(b'x') * (64 << 20)"]
    node.apply(pod("hungry", container("app", grow, cpu="1", memory="16Mi"), restartPolicy="Never"))
    state = node.wait(lambda s: "exit" in status(s, "hungry", "app"), "the container's end", of=("hungry",))

    _, code, signal, is_oom, _ = status(state, "hungry", "app")["exit"]
    assert (code, signal, is_oom) == (None, 9, True)
    said = node.inspect_pod("hungry")
    assert "OOMKilled" in said
    assert "1 process OOM-killed in its cgroup" in said


def test_exit_codes_and_restart_counts_are_kept_over_the_agents_absence(node: Node) -> None:
    node.run("rm -f /run/go; mkfifo /run/go")
    wait = "read -r _ </run/go; exit 41"
    node.apply(
        pod("worker", container("app", ["sh", "-c", wait], cpu="1"), restartPolicy="Never"),
        pod("bystander", container("app", ["sleep", "infinity"], cpu="1")),
    )
    node.wait_running("worker", "bystander")
    (bystander,) = node.pids(node.cgroup("bystander", "app"))
    (pid,) = node.pids(node.cgroup("worker", "app"))

    node.run("systemctl stop nodeagent")
    node.run(f"echo >/run/go; while [ -e /proc/{pid} ]; do sleep 0.1; done")
    node.run("systemctl start nodeagent")

    state = node.wait(lambda s: "exit" in status(s, "worker", "app"), "the exit code")
    assert status(state, "worker", "app")["exit"][1:4] == [41, None, False]
    assert node.pids(node.cgroup("bystander", "app")) == [bystander]


def test_the_launchers_end_is_not_the_pods_end(node: Node) -> None:
    """The dead launcher's children keep running; only their exit codes are lost, as when kubelet loses one."""
    node.run("rm -f /run/go; mkfifo /run/go")
    wait = "read -r _ </run/go; exit 17"
    node.apply(
        pod("worker", container("app", ["sh", "-c", wait], cpu="1"), restartPolicy="Never"),
        pod("steady", container("app", ["sleep", "infinity"], cpu="2")),
    )
    node.wait_running("worker", "steady")
    before, launcher = node.footprint(), node.main_pid("nodeagent-launcher")

    node.run(
        f"kill -9 {launcher}; until [ $(systemctl show -P MainPID nodeagent-launcher) -ne {launcher} ] &&"
        " systemctl is-active -q nodeagent-launcher; do sleep 0.1; done",
    )

    assert node.footprint() == before
    node.run("echo >/run/go")
    state = node.wait(lambda s: "exit" in status(s, "worker", "app"), "the exit code")
    assert status(state, "worker", "app")["exit"][1:] == [None, None, False, None]
    assert "ContainerStatusUnknown" in node.inspect_pod("worker")
    node.apply(pod("later", container("app", ["sleep", "infinity"], cpu="1")))
    node.wait_running("later")


def test_a_pod_gets_its_grace_period_and_then_ends(node: Node) -> None:
    node.run("rm -f /run/said")
    polite = "trap 'echo asked >/run/said; exit 0' TERM; while :; do sleep 0.1; done"
    node.apply(pod("polite", container("app", ["sh", "-c", polite], cpu="1"), terminationGracePeriodSeconds=3600))
    node.wait_running("polite")
    node.delete("polite")
    node.wait_gone("polite")  # a process that ends when asked isn't waited for

    assert node.run("cat /run/said").stdout == "asked\n"


def test_output_goes_to_the_journal_under_the_containers_name(node: Node) -> None:
    node.apply(pod("speaker", container("app", ["sh", "-c", "echo spoken; echo wrong >&2; exec sleep infinity"])))
    node.wait_running("speaker")
    shown = "journalctl -q -o short NODEAGENT_POD=default/speaker"
    found = node.run("journalctl -q -n 50 -o json | grep -E 'spoken|wrong'").stdout
    assert "speaker" in found, shown


CONNECT = (
    'import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect("/run/nodeagent-pods/launcher.sock")'
)


def test_exec_runs_in_the_container_and_nowhere_else(node: Node) -> None:
    node.apply(
        pod("slot", container("slot", None, cpu="2")), pod("other", container("app", ["sleep", "infinity"], cpu="1"))
    )
    state = node.wait_running("other", "slot")
    promised = state["promises"]["pods"]["uid-slot"]["cpus"]["slot"]

    inside = node.run("nodeagent exec slot slot -- grep Cpus_allowed_list /proc/self/status").stdout.split()
    status_of_command = node.run("nodeagent exec slot slot -- sh -c 'exit 9'", check=False).returncode
    nowhere = node.run("nodeagent exec slot ../poduid-other/app -- true", check=False)

    somebody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    others = {
        "nodeagent exec": node.run(f"{somebody} nodeagent exec slot slot -- true", check=False),
        "by hand": node.run(
            f"{somebody} sh -c 'echo 0 >{node.cgroup('slot', 'slot')}/payload/cgroup.procs'", check=False
        ),
        "to the launcher": node.run(f"{somebody} python3 -c '{CONNECT}'", check=False),
    }

    assert {name: done.returncode == 0 for name, done in others.items()} == dict.fromkeys(others, False)
    assert "only root" in others["nodeagent exec"].stderr
    assert "Permission denied" in others["by hand"].stderr
    assert "PermissionError" in others["to the launcher"].stderr
    assert inside[1] == promised
    assert status_of_command == 9
    assert nowhere.returncode == 125
    assert "has no container" in nowhere.stderr

    node.run(f"sleep infinity >/dev/null 2>&1 & echo $! >{node.cgroup('slot', 'slot')}/cgroup.procs")
    (found,) = node.inspect()["differences"]
    assert (found["file"], found["promised"]) == ("cgroup.procs", "no process outside payload")
    kept_out = node.run("nodeagent exec slot slot -- true", check=False)
    assert "into the cgroup above" in kept_out.stderr


def test_a_refused_pod_is_shown_with_the_next_step_and_admitted_on_retry_when_it_fits(node: Node) -> None:
    node.apply(pod("holder", container("app", ["sleep", "infinity"], cpu="10")))
    node.wait_running("holder")
    node.apply(pod("late", container("app", ["sleep", "infinity"], cpu="10")))
    state = node.wait_refused("late")
    assert "uid-late" not in state["promises"]["pods"]
    shown = node.inspect_pod("late")
    assert "OutOfcpu" in shown
    assert "nodeagent retry default/late" in shown
    explained = node.run("nodeagent explain default/late", check=False)
    assert explained.returncode == 4
    assert "OutOfcpu" in explained.stdout
    assert "  * end pod default/holder\n" in explained.stdout

    again = node.run("nodeagent retry default/late", check=False)
    assert again.returncode != 0
    assert "refused again" in again.stderr
    node.delete("holder")
    node.wait_gone("holder")
    assert "Now it would be admitted" in node.run("nodeagent explain default/late").stdout
    assert "is admitted" in node.run("nodeagent retry default/late").stdout
    node.wait_running("late")
    assert "Decided again, the result is the same" in node.run("nodeagent explain default/late").stdout


NOBODY = 65534
FOLLOW = """
env | grep ^NODEAGENT_ | sort >/run/told/env
while :; do
    now=$(cat "$NODEAGENT_PLACEMENT_FILE")
    [ "$now" = "$before" ] || { echo "$now" >/run/told/new; mv /run/told/new /run/told/now; }
    before=$now
    sleep 0.2
done
"""
"""Writes down what the process is told, as any user may who can read it."""


def lines(*, exclusive: str = "", shared: str = "") -> list[str]:
    return [
        f"NODEAGENT_EXCLUSIVE_CPUS={exclusive}",
        f"NODEAGENT_SHARED_CPUS={shared}",
        "NODEAGENT_MEMORY_NODES=0-1",
    ]


def test_a_mixed_container_has_its_own_cpus_and_the_pool_beside_them(node: Node) -> None:
    """Of a Burstable pod, where no container could have CPUs of its own otherwise."""
    asked = {"resources": {"requests": {"cpu": "1500m"}}}
    mixed = pod("mixed", container("app", ["sleep", "infinity"]) | asked)
    mixed["metadata"]["annotations"] = {"exclusive-cpus.nodeagent.io/app": "1"}
    node.apply(mixed)
    node.wait_running("mixed")
    cgroup, (pid,) = (
        f"{ROOT}/burstable/poduid-mixed/app",
        node.pids(f"{ROOT}/burstable/poduid-mixed/app"),
    )

    def shown() -> tuple[CpuSet, CpuSet]:
        """Its own CPUs and the pool, as everybody has them."""
        promises = node.state()["promises"]
        own, pool = (CpuSet.parse(t) for t in (promises["pods"]["uid-mixed"]["cpus"]["app"], promises["default"]))
        assert CpuSet.parse(node.value(cgroup, "cpuset.cpus.effective")) == own | pool
        assert CpuSet.parse(node.allowed(pid)[0]) == own | pool
        told = node.run("cat /run/nodeagent/placement/uid-mixed/app").stdout.splitlines()
        assert told == lines(exclusive=str(own), shared=str(pool))
        assert f'"uid-mixed":{{"app":"{own}"}}' in node.guest.get(f"{STATE}/cpu_manager_state").decode()
        return own, pool

    own, pool = shown()
    assert (len(own), own & pool) == (1, CpuSet())
    node.apply(pod("alone", container("app", ["sleep", "infinity"], cpu="2")))
    alone = CpuSet.parse(node.wait_running("alone")["promises"]["pods"]["uid-alone"]["cpus"]["app"])
    node.metrics()
    assert shown() == (own, pool - alone)
    node.delete("alone")
    node.wait_gone("alone")
    node.metrics()
    assert shown() == (own, pool)
    assert node.value(cgroup, "cpu.max") == "max 100000"


def test_processes_know_their_cpus_and_are_told_of_changes(node: Node) -> None:
    node.run("rm -rf /run/told; mkdir -m 1777 /run/told")
    follower = container("app", ["sh", "-c", FOLLOW]) | {"securityContext": {"runAsUser": NOBODY, "runAsGroup": NOBODY}}
    node.apply(pod("slot", container("slot", None, cpu="1")))
    node.wait_running("slot")
    node.apply(pod("follower", follower))
    state = node.wait_running("follower", "slot")

    def wait_followed() -> None:
        pool = lines(shared=node.state()["promises"]["default"])
        node.wait(lambda _: node.run("cat /run/told/now", check=False).stdout.splitlines() == pool, f"it to see {pool}")

    file = "/run/nodeagent/placement/uid-{}/{}".format
    pool, pid = state["promises"]["default"], min(node.pids(node.cgroup("follower", "app", qos="besteffort")))
    wait_followed()
    given = sorted([*lines(shared=pool), "NODEAGENT_PLACEMENT_FILE=/run/nodeagent/placement/_shared/pool"])
    assert node.run("cat /run/told/env").stdout.splitlines() == given
    assert node.run("stat -c %U /run/told/env").stdout == "nobody\n"

    told = ["sh", "-c", 'echo "$0" >/run/told/argument; exec sleep infinity', "$(NODEAGENT_EXCLUSIVE_CPUS)"]
    node.apply(pod("alone", container("app", told, cpu="2")))
    state = node.wait_running("alone")
    mine = state["promises"]["pods"]["uid-alone"]["cpus"]["app"]
    assert node.wait_line("/run/told/argument") == mine
    assert node.run(f"cat {file('alone', 'app')}").stdout.splitlines() == lines(exclusive=mine)
    wait_followed()
    assert state["promises"]["default"] != pool
    assert min(node.pids(node.cgroup("follower", "app", qos="besteffort"))) == pid, "nobody was started again"

    one = state["promises"]["pods"]["uid-slot"]["cpus"]["slot"]
    slot = f"cat {file('slot', 'slot')}"
    assert node.run(slot).stdout.splitlines() == lines(exclusive=one)
    online = f"/sys/devices/system/cpu/cpu{one}/online"
    try:
        node.run(f"echo 0 >{online}")
        elsewhere = lines(shared=node.state()["promises"]["default"])
        node.wait(lambda _: node.run(slot).stdout.splitlines() == elsewhere, "the file to say that it is in the pool")
    finally:
        node.run(f"echo 1 >{online}")
    node.wait(lambda _: node.run(slot).stdout.splitlines() == lines(exclusive=one), "the file to say that it is back")

    files = "find /run/nodeagent/placement -type f -exec stat -c '%n %a %i' {} + | sort"
    before = node.run(files).stdout
    node.run("systemctl stop nodeagent")
    assert node.run(files).stdout == before, "they outlive the agent"
    node.run("systemctl start nodeagent")
    node.restart_agent()
    assert node.run(files).stdout == before, "nobody was told anything that was known"
    assert {line.split()[1] for line in before.splitlines()} == {"644"}

    node.delete("alone")
    node.wait_gone("alone")
    wait_followed()
    assert node.run("ls /run/nodeagent/placement").stdout.split() == ["_shared", "uid-slot"]
