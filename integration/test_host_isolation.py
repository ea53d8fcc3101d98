"""`hostIsolation: partition` on a real kernel: the host's processes leave exclusive CPUs while pods have them, and come back."""

import pytest

from integration.guest.guest import Guest
from integration.isolation import configuration, isolate
from integration.node import CONFIG, ROOT, Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.manifest.job_pod import GRACE_SECONDS
from tests.support.figures import Recorder, report

pytestmark = pytest.mark.configures

SLEEP = ["sleep", "infinity"]
SLICE = "/sys/fs/cgroup/nodeagent.slice"
OWNER, MIXED, SHARED = "owner", "mixed", "shared"
SETTINGS = "cpuset.cpus.exclusive cpuset.cpus.partition"


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    node = Node(four_nodes)
    isolate(node, "partition", "none")
    return node


def pods(node: Node) -> tuple[CpuSet, CpuSet]:
    """One with two exclusive CPUs, one with one beside a shared container, a shared one. Returns the exclusive CPUs of the first two."""
    node.apply(
        pod(OWNER, container("app", SLEEP, cpu="2")),
        pod(MIXED, container("app", SLEEP, cpu="1"), container("beside", SLEEP, cpu="100m")),
        pod(SHARED, container("app", SLEEP)),
    )
    state = node.wait_running(OWNER, MIXED, SHARED)
    return promised(state, OWNER), promised(state, MIXED)


def promised(state: Document, name: str) -> CpuSet:
    return CpuSet.parse(state["promises"]["pods"][f"uid-{name}"]["cpus"]["app"])


def cpus_of(text: str) -> CpuSet:
    return CpuSet.parse(text.strip())


def left_to_host(node: Node) -> CpuSet:
    """CPUs that are in no partition, after what the agent has done since it saved."""
    node.metrics()
    return given(node)


def given(node: Node) -> CpuSet:
    """CPUs of the root of all cgroups."""
    return cpus_of(node.run("cat /sys/fs/cgroup/cpuset.cpus.effective").stdout)


def settings(node: Node) -> str:
    """Everything of partitions that anybody has set, anywhere."""
    node.metrics()
    names = " -o ".join(f"-name {name}" for name in SETTINGS.split())
    text = node.run(
        f"find /sys/fs/cgroup \\( {names} \\) -exec grep -H . {{}} + | grep -v ':member$' | sort || true"
    ).stdout
    return text.replace("/sys/fs/cgroup/", "")


def test_the_host_leaves_exclusive_cpus_and_comes_back(node: Node, record_property: Recorder) -> None:
    online = cpus_of(node.run("cat /sys/devices/system/cpu/online").stdout)
    before = settings(node)

    owner, mixed = pods(node)

    assert before == ""
    assert left_to_host(node) == online - owner - mixed
    init = node.allowed(1)[0]
    shell = node.run("awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status").stdout
    assert (cpus_of(init), cpus_of(shell)) == (online - owner - mixed, online - owner - mixed)
    for name, own in ((OWNER, owner), (MIXED, mixed)):
        (pid,) = node.pids(node.cgroup(name, "app"))
        assert cpus_of(node.allowed(pid)[0]) == own
    assert node.value(f"{ROOT}/poduid-{OWNER}", "cpuset.cpus.partition") == "root"
    assert node.value(node.cgroup(MIXED, "app"), "cpuset.cpus.partition") == "root"
    assert cpus_of(node.value(SLICE, "cpuset.cpus.exclusive")) == owner | mixed
    assert node.inspect()["differences"] == []
    assert node.inspect()["node"]["problems"] == []

    with_pods = settings(node)
    node.restart_agent()
    node.run("systemctl daemon-reload")
    assert settings(node) == with_pods, "neither changes anything"

    node.delete(OWNER)
    node.wait_gone(OWNER)
    assert left_to_host(node) == online - mixed
    node.clear()
    assert left_to_host(node) == online
    assert settings(node) == before
    report(record_property, f"with two pods in partitions:\n  {with_pods}")


def test_what_others_do_to_a_partition_is_put_right(node: Node) -> None:
    owner, mixed = pods(node)
    mine = settings(node)
    for cgroup, file, content in (
        (f"{ROOT}/poduid-{OWNER}", "cpuset.cpus.partition", "member"),
        (SLICE, "cpuset.cpus.exclusive", str(mixed)),
        (ROOT, "cpuset.cpus.exclusive", ""),
        (node.cgroup(MIXED, "app"), "cpuset.cpus.exclusive", ""),
    ):
        cursor = node.cursor()
        node.run(f"echo {content} >{cgroup}/{file}")
        node.wait_log(cursor, "cgroup_drift_corrected")
        node.wait(lambda _: settings(node) == mine, f"{file} of {cgroup} to be put right")
    assert left_to_host(node) & (owner | mixed) == CpuSet()


def test_a_cpu_that_goes_offline_comes_back_into_its_partition(node: Node) -> None:
    owner, _ = pods(node)
    mine = settings(node)
    last = max(owner)
    cpu = f"/sys/devices/system/cpu/cpu{last}/online"
    node.run(f"echo 0 >{cpu}")
    node.wait(
        lambda _: last not in cpus_of(node.inspect()["node"]["cpus"]["online"]), "the agent to see that a CPU is away"
    )
    assert settings(node) == mine
    node.run(f"echo 1 >{cpu}")
    node.wait(lambda _: last in cpus_of(node.inspect()["node"]["cpus"]["online"]), "the agent to see that it is back")
    assert settings(node) == mine
    (pid,) = node.pids(node.cgroup(OWNER, "app"))
    assert cpus_of(node.allowed(pid)[0]) == owner


def test_a_pod_may_ask_not_to_be_balanced(node: Node) -> None:
    asking = pod(OWNER, container("app", SLEEP, cpu="2"))
    asking["metadata"]["annotations"] = {"nodeagent.io/partition": "isolated"}
    node.apply(asking)
    own = promised(node.wait_running(OWNER), OWNER)
    assert left_to_host(node).isdisjoint(own)
    assert node.value(f"{ROOT}/poduid-{OWNER}", "cpuset.cpus.partition") == "isolated"
    assert cpus_of(node.run("cat /sys/fs/cgroup/cpuset.cpus.isolated").stdout) == own
    (shown,) = (c for p in node.inspect()["pods"] for c in p["containers"])
    assert (shown["partition"], node.inspect()["differences"]) == ("isolated", [])
    assert "the kernel spreads no load over them" in " ".join(shown["notes"])


def test_turning_it_off_gives_the_cpus_back_while_pods_run(node: Node) -> None:
    owner, mixed = pods(node)
    assert settings(node) != ""
    node.guest.put(CONFIG, configuration("none", "none"))
    node.reload()
    node.wait(lambda _: settings(node) == "", "all partitions to be gone")
    assert left_to_host(node) >= owner | mixed
    (pid,) = node.pids(node.cgroup(OWNER, "app"))
    assert cpus_of(node.allowed(pid)[0]) == owner


@pytest.mark.long
def test_release_without_an_agent_gives_the_cpus_back(node: Node) -> None:
    owner, mixed = pods(node)
    assert left_to_host(node) & (owner | mixed) == CpuSet()
    node.run("systemctl stop nodeagent")
    assert given(node) & (owner | mixed) == CpuSet(), "pods run on without an agent, alone as before"
    node.run("nodeagent release --all")
    assert given(node) >= owner | mixed
    assert node.run(f"cat {SLICE}/cpuset.cpus.exclusive {ROOT}/cpuset.cpus.exclusive").stdout.strip() == ""
    node.run("systemctl start nodeagent")


@pytest.mark.long
def test_stopping_the_pods_unit_gives_the_cpus_back(node: Node) -> None:
    owner, mixed = pods(node)
    node.run("systemctl stop nodeagent nodeagent-pods")
    assert given(node) >= owner | mixed
    node.run("systemctl start nodeagent")
    node.clear()


def test_other_programs_can_use_a_jobs_cpus_once_the_command_returns(node: Node) -> None:
    """Without --until-free they can't yet: the command is the job's own process, and the agent closes its partition after that."""
    job = "nodeagent job --cpus 2 --memory 64Mi --until-free -- sh -c 'echo $NODEAGENT_EXCLUSIVE_CPUS; exit 7'"
    for _ in range(3):
        done = node.run(f"set +e; cpus=$({job}); echo $?; taskset --cpu-list $cpus true && echo works")
        assert done.stdout.split() == ["7", "works"], done.stderr


MEASURES = """
import os, subprocess, time
job = ("nodeagent", "job", "--cpus", "2", "--memory", "64Mi", "--", "sh", "-c", "echo $NODEAGENT_EXCLUSIVE_CPUS; read x")
pipe = subprocess.PIPE
with subprocess.Popen(job, stdin=pipe, stdout=pipe, text=True) as running:
    first, _, last = running.stdout.readline().strip().partition("-")
    cpus = {int(first), int(last)}
    def can_use():
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:
            return False
        return True
    print(can_use())
    running.stdin.close()
    running.wait()
    began = time.monotonic()
    while not can_use():
        pass
    print(time.monotonic() - began)
"""
"""Print whether a job's CPUs can be used while the job runs, and after how many seconds they can be used once the command has returned."""


def test_a_plain_jobs_cpus_come_back_by_themselves_soon_after_the_command_returns(
    node: Node, record_property: Recorder
) -> None:
    node.guest.put("/tmp/measures.py", MEASURES)
    seconds = []
    for _ in range(5):
        before, after = node.run("python3 -S /tmp/measures.py").stdout.split()
        assert before == "False", "the job's partition keeps others out"
        seconds.append(float(after))
    last = max(seconds)
    report(
        record_property,
        f"a job's CPUs could be used {1000 * last:.0f} ms after its command at the latest, on the guest's clock",
    )
    assert last < GRACE_SECONDS, "nothing waits for a timer"


def test_other_programs_can_use_a_pods_cpus_like_a_jobs_cpus_once_delete_has_waited(node: Node) -> None:
    for _ in range(3):
        node.apply(pod(OWNER, container("app", SLEEP, cpu="2")))
        cpus = promised(node.wait_running(OWNER), OWNER)
        node.run(f"nodeagent delete --wait {OWNER}; taskset --cpu-list {cpus} true")
        node.wait_gone(OWNER)
