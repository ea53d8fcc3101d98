"""Processes are where they were promised to be from their first instruction on, and nothing that happens to the agent moves them."""

import pytest

from integration.guest.guest import Guest
from integration.node import POOL, ROOT, STATE, Node, container, pod
from tests.support.figures import Recorder, report

pytestmark = pytest.mark.main_job
TELL = "grep -h _allowed_list /proc/self/status | tr '\\n' ' ' >/run/$0; echo >>/run/$0; exec sleep infinity"
"""First the process writes down where it may run, into the file named by `$0`."""


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def test_a_pinned_process_has_exactly_its_cpus_from_its_first_instruction(node: Node) -> None:
    node.run("rm -f /run/pinned /run/shared")
    node.apply(
        pod("pinned", container("app", ["sh", "-c", TELL, "pinned"], cpu="4")),
        pod("shared", container("app", ["sh", "-c", TELL, "shared"])),
    )
    state = node.wait_running("pinned", "shared")

    promised = state["promises"]["pods"]["uid-pinned"]["cpus"]["app"]
    shared = state["promises"]["default"]
    assert node.wait_line("/run/pinned").split() == ["Cpus_allowed_list:", promised, "Mems_allowed_list:", "0-1"]
    assert node.wait_line("/run/shared").split()[1] == shared
    (pid,) = node.pids(node.cgroup("pinned", "app"))
    assert node.allowed(pid) == (promised, "0-1")
    assert node.value(node.cgroup("pinned", "app"), "cpuset.cpus.effective") == promised
    assert node.value(node.cgroup("pinned", "app"), "cpu.max") == "max 100000", "no quota on CPUs of its own"
    assert promised in node.guest.get(f"{STATE}/cpu_manager_state").decode()


def test_an_agent_that_goes_and_comes_moves_nothing_and_no_thread_loses_its_own_affinity(node: Node) -> None:
    """Kernel 6.1 forgets a thread's own affinity whenever its cpuset is written, even with the same value (D13)."""
    node.apply(
        pod(
            "pinned",
            container("app", ["sleep", "infinity"], cpu="4"),
            container("more", ["sleep", "infinity"], cpu="1"),
        ),
        pod("burst", container("app", ["tail", "-f", "/dev/null"], cpu="500m", limit_cpu="1")),
        pod("shared", container("app", ["sleep", "infinity"])),
        pod("slot", container("slot", None, cpu="2")),
    )
    state = node.wait_running("pinned", "burst", "shared", "slot")
    own, pool = state["promises"]["pods"]["uid-pinned"]["cpus"]["app"], state["promises"]["default"]
    narrowed = narrow(node, node.cgroup("pinned", "app"), own) | narrow(
        node, node.cgroup("shared", "app", qos="besteffort"), pool
    )
    before, checkpoint = node.footprint(), node.guest.get(f"{STATE}/cpu_manager_state")
    assert len([line for line in before.splitlines() if "cgroup.procs" in line]) >= 4

    for go_and_come in (node.restart_agent, node.kill_agent):
        go_and_come()
        assert node.footprint() == before
        assert node.guest.get(f"{STATE}/cpu_manager_state") == checkpoint
        assert node.metrics()["nodeagent_cgroup_writes_total"] == 0, "the one that came wrote nothing into any cgroup"
        assert {pid: node.allowed(pid)[0] for pid in narrowed} == narrowed

    node.run("systemctl daemon-reload")
    reconciles = node.metrics()["nodeagent_reconcile_duration_seconds_count"]
    node.wait_metric("nodeagent_reconcile_duration_seconds_count", reconciles)
    node.apply(pod("another", container("app", ["sleep", "infinity"])))
    node.wait_running("another")

    assert {pid: node.allowed(pid)[0] for pid in narrowed} == narrowed


def narrow(node: Node, cgroup: str, cpus: str) -> dict[int, str]:
    """Make the cgroup's process choose the last of its CPUs by itself."""
    (pid,) = node.pids(cgroup)
    last = cpus.replace(",", "-").split("-")[-1]
    node.run(f"taskset -pc {last} {pid}")
    return {pid: last}


def test_a_change_from_outside_is_put_back_logged_and_counted(node: Node, record_property: Recorder) -> None:
    node.apply(
        pod("pinned", container("app", ["sleep", "infinity"], cpu="2")),
        pod("burst", container("app", ["sleep", "infinity"], cpu="500m", limit_cpu="1")),
    )
    node.wait_running("pinned", "burst")
    for cgroup, file, foreign, series in (
        (POOL, "cpuset.cpus", "3", 'nodeagent_drift_corrected_total{attribute="cpuset.cpus"}'),
        (
            node.cgroup("burst", "app", qos="burstable"),
            "cpu.max",
            "max 100000",
            'nodeagent_drift_corrected_total{attribute="cpu.max"}',
        ),
    ):
        promised, counted, cursor = node.value(cgroup, file), node.metrics()[series], node.cursor()
        assert promised != foreign
        at = float(node.run(f"date +%s.%N; echo {foreign} >{cgroup}/{file}").stdout)

        line = node.wait_log(cursor, "cgroup_drift_corrected")
        took = float(node.run(f"date -d {line['timestamp']} +%s.%N").stdout) - at
        report(record_property, f"{file} put back after {took:.3f} s on the guest's clock")
        assert took < 1, "ten times the 100 ms that are promised on a real machine"

        assert (line["file"], line["restored"] != line["found"]) == (file, True)
        assert line["cgroup"] in cgroup
        assert node.value(cgroup, file) == promised
        node.wait_metric(series, counted)


def test_cpus_come_back_only_when_the_last_process_has_gone(node: Node) -> None:
    stubborn = "trap '' TERM; (trap '' TERM; while :; do sleep 0.2; done) & while :; do sleep 0.2; done"
    node.apply(pod("stubborn", container("app", ["sh", "-c", stubborn], cpu="2"), terminationGracePeriodSeconds=3))
    before = node.wait_running("stubborn")
    promised = before["promises"]["pods"]["uid-stubborn"]["cpus"]["app"]
    cgroup = node.cgroup("stubborn", "app")
    node.delete("stubborn")

    ending = node.wait(lambda state: "deletingSinceMs" in state["entries"][0], "the pod to be ending", of=("stubborn",))
    assert ending["promises"]["pods"]["uid-stubborn"]["cpus"]["app"] == promised
    assert node.pids(cgroup), "they ignore SIGTERM"
    after = node.wait_gone("stubborn")

    assert "uid-stubborn" not in after["promises"]["pods"]
    assert node.run(f"ls -d {ROOT}/pod*", check=False).stdout == ""
    assert after["promises"]["default"] == "0-15"


def test_freed_cpus_reach_running_shared_containers(node: Node) -> None:
    node.apply(pod("shared", container("app", ["sleep", "infinity"])))
    node.wait_running("shared")
    cgroup = node.cgroup("shared", "app", qos="besteffort")
    whole = node.value(cgroup, "cpuset.cpus.effective")
    node.apply(pod("pinned", container("app", ["sleep", "infinity"], cpu="4")))
    state = node.wait_running("pinned")
    (pid,) = node.pids(cgroup)

    assert whole == "0-15"
    assert node.value(cgroup, "cpuset.cpus.effective") == state["promises"]["default"] == node.allowed(pid)[0]
    node.delete("pinned")
    node.wait_gone("pinned")
    node.run(f"until [ $(cat {POOL}/cpuset.cpus.effective) = 0-15 ]; do sleep 0.05; done")
    assert node.allowed(pid)[0] == "0-15"


def test_a_process_that_is_moved_and_a_cgroup_that_is_removed_are_put_back(node: Node) -> None:
    node.apply(
        pod("pinned", container("app", ["sleep", "infinity"], cpu="2")), pod("slot", container("slot", None, cpu="2"))
    )
    state = node.wait_running("pinned", "slot")
    promised = state["promises"]["pods"]["uid-pinned"]["cpus"]["app"]
    home, slot = node.cgroup("pinned", "app"), node.cgroup("slot", "slot")
    (pid,) = node.pids(home)
    before, cursor = node.footprint(), node.cursor()

    node.run(f"echo {pid} >/sys/fs/cgroup/cgroup.procs; rmdir {slot}/payload {slot}")

    line = node.wait_log(cursor, "process_brought_back")
    assert (line["pod"], line["container"], line["pid"]) == ("default/pinned", "app", pid)
    node.wait(lambda _: node.footprint() == before, "process and cgroup to be where they were")
    assert node.pids(home) == [pid]
    assert node.allowed(pid)[0] == promised
    for what in ("cgroup.procs", "cgroup"):
        node.wait_metric(f'nodeagent_drift_corrected_total{{attribute="{what}"}}', 0)


def test_a_process_that_leaves_when_it_is_to_end_keeps_its_cpus_from_others_until_it_ends(node: Node) -> None:
    leave = "trap 'echo 0 >/sys/fs/cgroup/cgroup.procs; echo left >/run/left' TERM; while :; do sleep 1; done"
    node.run("rm -f /run/left")
    node.apply(pod("leaver", container("app", ["sh", "-c", leave], cpu="2"), terminationGracePeriodSeconds=10))
    node.wait_running("leaver")
    pid = min(node.pids(node.cgroup("leaver", "app")))

    node.delete("leaver")
    assert node.wait_line("/run/left") == "left"
    state = node.state()
    assert "deletingSinceMs" in state["entries"][0]
    assert "uid-leaver" in state["promises"]["pods"], "its CPUs are nobody else's while it runs"
    node.wait_gone("leaver")
    assert node.run(f"kill -0 {pid}", check=False).returncode != 0, "it was killed after its grace period"
