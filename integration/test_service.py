"""The service as systemd and the users of the node see it: readiness, watchdog, permissions, a Unix socket for metrics, removal."""

import json
import re
from fnmatch import fnmatchcase

import pytest

from integration.guest.cache import REPOSITORY
from integration.guest.guest import Guest
from integration.node import CONFIG, ROOT, Node, container, pod

SLEEP = ["sleep", "infinity"]
FORK = b"""
import os, sys
from nodeagent.launcher.fork import fork_into
pid = fork_into(sys.argv[1])
if pid == 0:
    lines = [*open("/proc/self/cgroup"), *open("/proc/self/status")]
    os.write(1, "".join(line for line in lines if line.startswith(("0::", "Cpus_allowed_list"))).encode())
    os._exit(7)
print("refused" if pid is None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
FORKED = {"two_sockets": "refused\n", "four_nodes": "0::/forked\nCpus_allowed_list:\t3\n7\n"}
"""What a fork into the cgroup `forked` on CPU 3 prints: kernel 6.1 wouldn't give the child the cgroup's CPUs, and kernel 6.12 does."""


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    guest: Guest = request.getfixturevalue(request.param)
    return Node(guest)


@pytest.fixture(params=["two_sockets", pytest.param("four_nodes", marks=pytest.mark.long)])
def any_node(request: pytest.FixtureRequest) -> Node:
    """For what does not depend on systemd's version."""
    guest: Guest = request.getfixturevalue(request.param)
    return Node(guest)


def test_it_is_ready_when_the_node_is_as_promised(node: Node) -> None:
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    node.wait_running("one")
    cgroup = node.cgroup("one", "app")
    promised = node.value(cgroup, "cpuset.cpus")
    node.run(f"systemctl stop nodeagent; echo 0 >{cgroup}/cpuset.cpus")
    node.run("systemctl start nodeagent")
    assert node.value(cgroup, "cpuset.cpus") == promised, "READY comes after the first reconcile"
    shown = node.unit("Type", "ActiveState", "StatusText", "WatchdogTimestampMonotonic")
    assert (shown["Type"], shown["ActiveState"]) == ("notify", "active")
    assert "1 pod" in shown["StatusText"]
    assert int(shown["WatchdogTimestampMonotonic"]) > 0


@pytest.mark.parametrize("kind", FORKED)
def test_a_process_begins_in_its_cgroup_if_the_kernel_gives_it_the_cgroups_cpus(
    request: pytest.FixtureRequest, kind: str
) -> None:
    guest: Guest = request.getfixturevalue(kind)
    guest.put("/run/fork.py", FORK)
    node = Node(guest)
    made = "mkdir /sys/fs/cgroup/forked && echo 3 >/sys/fs/cgroup/forked/cpuset.cpus"
    try:
        assert (
            node.run(f"{made} && /opt/nodeagent/bin/python -I /run/fork.py /sys/fs/cgroup/forked").stdout
            == FORKED[kind]
        )
    finally:
        node.run("rmdir /sys/fs/cgroup/forked")


def test_a_stopped_agent_leaves_cleanly(any_node: Node) -> None:
    any_node.run("systemctl stop nodeagent")
    assert any_node.unit("Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    told = any_node.run("nodeagent inspect --no-host-processes", check=False)
    any_node.run("systemctl start nodeagent")
    assert told.returncode == 3, told.stderr
    assert "is NOT running" in told.stdout
    assert "systemctl start nodeagent" in " ".join(told.stdout.split())


def test_inspect_shows_what_differs_while_the_agent_is_away(any_node: Node) -> None:
    node = any_node
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    node.wait_running("one")
    assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 0
    cgroup = node.cgroup("one", "app")
    node.run(f"systemctl stop nodeagent; echo 0 >{cgroup}/cpuset.cpus")
    try:
        answer = node.run("nodeagent inspect -o json --no-host-processes", check=False)
        assert answer.returncode == 3
        (found,) = json.loads(answer.stdout)["differences"]
        assert (found["pod"], found["container"], found["file"]) == ("default/one", "app", "cpuset.cpus")
    finally:
        node.run("systemctl start nodeagent")
    assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 0


def test_the_group_may_look_and_nobody_else(any_node: Node) -> None:
    any_node.run("id looker || useradd --groups nodeagent looker; id stranger || useradd stranger")
    command = "nodeagent inspect --no-host-processes"
    assert any_node.run(f"runuser -u looker -- {command}", check=False).returncode == 0
    refused = any_node.run(f"runuser -u stranger -- {command}", check=False)
    assert refused.returncode == 1
    assert "group nodeagent" in refused.stderr
    assert any_node.run("runuser -u looker -- nodeagent retry default/x", check=False).returncode != 0


@pytest.mark.long
def test_metrics_can_be_on_a_unix_socket(any_node: Node) -> None:
    node = any_node
    config = node.guest.get("/etc/nodeagent/config.yaml").decode()
    path = "/run/nodeagent/metrics.sock"
    try:
        node.guest.put("/etc/nodeagent/config.yaml", config.replace("127.0.0.1:9753", f"unix:{path}"))
        node.restart_agent()
        text = node.run(f"curl -sS --unix-socket {path} http://localhost/metrics").stdout
        assert "kubelet_cpu_manager_shared_pool_size_millicores 15000.0" in text.splitlines()
        assert node.run("curl -sS http://127.0.0.1:9753/metrics", check=False).returncode != 0
    finally:
        node.guest.put("/etc/nodeagent/config.yaml", config)
        node.restart_agent()


def test_a_wrong_configuration_leaves_no_node_without_an_agent_and_is_told_everywhere(any_node: Node) -> None:
    node = any_node
    config = node.guest.get(CONFIG).decode()
    wrong = config.replace("cpuManagerPolicy: static", "cpuManagerPolicy: statik\nmaxPodz: 3")
    try:
        node.guest.put(CONFIG, wrong)
        cursor = node.cursor()
        node.run("systemctl restart nodeagent")
        shown = node.unit("ActiveState", "StatusText")
        assert shown["ActiveState"] == "active"
        assert "statik" in shown["StatusText"]
        assert "statik" in json.dumps(node.wait_log(cursor, "configuration_refused"))
        assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 2
        assert "statik" in node.run("curl -sS http://127.0.0.1:9753/readyz").stdout
        metrics = node.run("curl -sS http://127.0.0.1:9753/metrics").stdout.splitlines()
        assert "nodeagent_config_refused 1.0" in metrics
        refused = node.run("nodeagent config reload", check=False)
        assert (refused.returncode, refused.stdout, "statik" in refused.stderr, "maxPodz" in refused.stderr) == (
            2,
            "",
            True,
            True,
        )
        node.guest.put(CONFIG, config)
        assert node.run("nodeagent config reload").stdout == f"{CONFIG} is in effect\n"
        assert "0 problems, 0 refused" in node.unit("StatusText")["StatusText"]
        assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 0
        assert node.run("curl -sS http://127.0.0.1:9753/readyz").stdout == "ok\n"
    finally:
        node.guest.put(CONFIG, config)
        node.run("systemctl reload-or-restart nodeagent")


def test_a_wrong_configuration_without_a_last_valid_one_stops_the_start_and_says_all_that_is_wrong(
    any_node: Node,
) -> None:
    node = any_node
    config = node.guest.get(CONFIG).decode()
    try:
        wrong = config.replace("cpuManagerPolicy: static", "cpuManagerPolicy: statik\nmaxPodz: 3")
        node.guest.put(CONFIG, wrong)
        node.run("rm /var/lib/nodeagent/last_config.yaml")
        cursor = node.cursor()
        assert node.run("systemctl restart nodeagent", check=False).returncode != 0
        assert node.unit("ExecMainStatus", "ActiveState") == {"ExecMainStatus": "78", "ActiveState": "failed"}
        journal = "\n".join(node.journal(cursor))
        assert "statik" in journal
        assert "maxPodz" in journal
    finally:
        node.guest.put(CONFIG, config)
        node.run("systemctl reset-failed nodeagent; systemctl start nodeagent")


def test_removal_is_refused_while_pods_run(any_node: Node) -> None:
    node = any_node
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    node.wait_running("one")
    before = node.footprint()
    refused = node.run("make --directory=/usr/src/nodeagent uninstall", check=False)
    assert refused.returncode != 0
    assert "pods are running" in refused.stderr
    assert node.footprint() == before
    assert node.run("systemctl is-active nodeagent").stdout == "active\n"


def test_the_pods_unit_stops_and_starts(node: Node) -> None:
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    before = node.wait_running("one")
    cursor = node.cursor()
    node.run("systemctl stop nodeagent-pods")
    line = node.wait_log(cursor, "trouble")
    assert "systemctl start nodeagent-pods" in line["problem"] or "launcher" in line["problem"]
    assert node.run(f"ls -d {ROOT}", check=False).returncode != 0
    node.run("systemctl start nodeagent-pods nodeagent-launcher")
    _wait_started_again(node)
    assert node.state()["promises"] == before["promises"]


def test_the_pods_unit_starts_where_a_cgroup_was_left(node: Node) -> None:
    """systemd puts a main process into the unit's own cgroup, which the kernel refuses if there are controlled sub-cgroups. It tries
    again.
    """
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    node.wait_running("one")
    node.run("systemctl stop nodeagent nodeagent-pods")
    node.run(
        f"mkdir -p {ROOT}/left/over; cd /sys/fs/cgroup; "
        f"for cgroup in . nodeagent.slice {ROOT} {ROOT}/left; do echo +cpu +cpuset +memory >$cgroup/cgroup.subtree_control; done"
    )
    assert node.run("systemctl start nodeagent-pods", check=False).returncode != 0
    launcher = "nodeagent-launcher"
    node.wait(lambda _: node.unit("ActiveState", name=launcher)["ActiveState"] == "active", "systemd's second attempt")
    assert "left" not in node.run(f"ls {ROOT}").stdout.split()
    assert int(node.unit("NRestarts", name="nodeagent-pods")["NRestarts"]) >= 1
    node.run("systemctl start nodeagent")
    _wait_started_again(node)


def _wait_started_again(node: Node) -> None:
    node.wait(
        lambda state: any(c.get("attempt", 0) > 1 for c in state["entries"][0]["containers"]),
        "the container to be started again",
    )
    node.wait_running("one")


def test_a_line_after_somebody_elses_is_found(node: Node) -> None:
    node.run("echo '<5>a line of the kernel' >/dev/kmsg; journalctl --sync")
    cursor = node.cursor()
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    assert node.wait_log(cursor, "pod_admitted")["pod_uid"] == "uid-one"


def test_the_journal_can_be_searched_by_pod_and_priority(node: Node) -> None:
    node.apply(pod("one", container("app", SLEEP, cpu="2")), pod("big", container("app", SLEEP, cpu="64")))
    node.wait_running("one", refused=("big",))
    text = node.run("journalctl -q -o json NODEAGENT_POD_UID=uid-big").stdout
    (line,) = [json.loads(line) for line in text.splitlines()][-1:]
    assert (line["NODEAGENT_EVENT"], line["NODEAGENT_POD"], line["PRIORITY"]) == ("pod_refused", "default/big", "4")
    assert line["_SYSTEMD_UNIT"] == "nodeagent.service"
    assert "uid-big" in node.run("journalctl -q -p warning -u nodeagent -o cat").stdout


@pytest.mark.long
def test_a_taken_port_and_a_refused_reload_are_shown_and_pods_run(any_node: Node) -> None:
    node = any_node
    usual = node.guest.get(CONFIG)
    try:
        node.run("systemctl stop nodeagent")
        node.run(
            "systemd-run --unit taken --quiet python3 -c"
            " 'import socket,time; s=socket.create_server((\"127.0.0.1\",9753)); time.sleep(1e6)'"
        )
        node.run("until ss -ltn | grep -q :9753; do sleep 0.1; done")
        node.run("systemctl start nodeagent")
        node.apply(pod("one", container("app", SLEEP, cpu="2")))
        node.wait_running("one")
        assert any(problem.startswith("metrics: ") for problem in node.inspect()["node"]["problems"])
        node.run("systemctl stop taken")
        node.guest.put(CONFIG, usual + b"\nnoSuchField: 1\n")
        assert node.run("systemctl reload nodeagent", check=False).returncode != 0
        node.run("systemctl kill -s HUP nodeagent")
        node.wait(
            lambda _: any("noSuchField" in problem for problem in node.inspect()["node"]["problems"]),
            "inspect to tell of the reload",
        )
        assert not any(problem.startswith("metrics: ") for problem in node.inspect()["node"]["problems"])
    finally:
        node.run("systemctl stop taken", check=False)
        node.guest.put(CONFIG, usual)
        node.run("systemctl reload-or-restart nodeagent")
    node.wait(lambda _: node.inspect()["node"]["problems"] == [], "the problems to be over")


def test_the_agent_is_in_a_sandbox_and_workloads_are_not(node: Node) -> None:
    """Everything else in these tests runs in the same sandbox. Each protection that is left out has its reason in a table."""
    reasons = table_of((REPOSITORY / "docs/reliability.md").read_text(), "missing protection")
    for column, (name, most) in enumerate({"": 24, "-launcher": 92, "-pods": 12}.items(), start=1):
        analyse = f"systemd-analyze security --no-pager nodeagent{name}.service"
        node.run(f"{analyse} --threshold={most}")
        listed = json.loads(node.run(f"{analyse} --json=short").stdout)
        patterns = [pattern for row in reasons if row[column] for pattern in re.findall("`([^`]*)`", row[0])]
        left_out = {line["name"] for line in listed if line["set"] is False}
        assert left_out
        assert {line for line in left_out if not any(fnmatchcase(line, pattern) for pattern in patterns)} == set(), name
    write = (
        "touch /opt/nodeagent/written && mount -t tmpfs none /mnt && umount /mnt && echo yes >/run/free; exec sleep 1e6"
    )
    node.run("rm -f /run/free")
    node.apply(pod("free", container("app", ["sh", "-c", write], cpu="1")))
    node.wait_running("free")
    assert node.wait_line("/run/free") == "yes"
    node.run("rm /opt/nodeagent/written")
    inside = f"nsenter --mount --target {node.main_pid()}"
    node.run(f"{inside} touch /run/nodeagent/mine && rm /run/nodeagent/mine")
    for place in ("/run", "/run/systemd/system", "/etc", "/usr"):
        refused = node.run(f"{inside} touch {place}/written", check=False)
        assert "Read-only file system" in refused.stderr, place
    status = node.run(f"grep -E 'CapBnd|Seccomp:|NoNewPrivs' /proc/{node.main_pid()}/status").stdout.split()
    shown = dict(zip(status[::2], status[1::2], strict=True))
    assert (shown["NoNewPrivs:"], shown["Seccomp:"]) == ("1", "2")
    assert int(shown["CapBnd:"], 16).bit_count() == 4


def table_of(page: str, first: str) -> list[tuple[str, ...]]:
    """The rows of the table in a page whose first column has that title."""
    rows = page.partition(f"\n| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]) for row in rows]
