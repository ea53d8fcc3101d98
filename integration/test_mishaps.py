"""A week of an operator's mishaps. A script that reads the exit status of `nodeagent inspect`, STATUS= and one metric names each one right,
and what the reference says mends it.
"""

import json
import shlex
from dataclasses import dataclass

import pytest

from integration.contrib import CONTRIB
from integration.former_release import INSTALL_SECONDS, installs, put_former_release
from integration.guest.guest import Guest
from integration.node import CONFIG, MANIFESTS, READY, ROOT, STATE, Document, Node, container, pod
from tests.support.status_line import named_kinds

SCRIPT = "/usr/local/bin/nodeagent-health"
SLEEP = ["sleep", "infinity"]
PODS = (pod("pinned", container("app", SLEEP, cpu="2")), pod("shared", container("app", SLEEP)))
PINNED = f"{ROOT}/poduid-pinned/app"
SOURCES = """
systemctl show -P StatusText nodeagent | head -n 1
exec 3<>/dev/tcp/127.0.0.1/9753 || exit 0
printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3
timeout 5 sed -n 's/^nodeagent_problems{kind="\\(.*\\)"} [1-9].*/\\1/p' <&3
"""
"""The agent's line in systemd, and then the kinds of problems in the metrics. The shell does what curl takes three times as long for."""
CONTROL = "systemctl reset-failed; systemctl start nodeagent"
LAUNCH = "systemctl start nodeagent-pods nodeagent-launcher"


@dataclass(frozen=True)
class Mishap:
    """What somebody does to a node with two pods, and what mends it. Both are scripts."""

    does: str
    named: tuple[str, ...] = ()
    """The kinds that the script prints. Empty means that the node heals by itself."""
    mends: str = "true"
    in_metrics: bool = True
    reboots: bool = False
    """Whether the machine reboots after it."""
    ends_pods: bool = False
    """Whether the pods are started again. Otherwise their processes and CPUs stay."""
    shows: str = ""
    """Words that `nodeagent inspect` shows then, where the kinds alone don't say it."""


def manifest(one: Document) -> str:
    return f"echo {shlex.quote(json.dumps(one))} >{MANIFESTS}/late.json"


def drop_in(*lines: str) -> str:
    text = "\\n".join(("[Service]", *lines, ""))
    folder = "/run/systemd/system/nodeagent.service.d"
    return f"mkdir -p {folder}; printf '{text}' >{folder}/mishap.conf; systemctl daemon-reload; systemctl restart --no-block nodeagent"


NO_LATE = f"rm {MANIFESTS}/late.json"
NO_DROP_IN = (
    "rm /run/systemd/system/nodeagent.service.d/mishap.conf; systemctl daemon-reload; systemctl restart nodeagent"
)
KEEP = f"cp {CONFIG} /root/config.yaml"
RESTORE = f"cp /root/config.yaml {CONFIG}"
RELOAD = "systemctl reload nodeagent"
LATE = manifest(pod("late", container("app", SLEEP, cpu="1")))
STRICT = f"echo 'cpuManagerPolicyOptions: {{strict-cpu-reservation: \"true\"}}' >>{CONFIG}"
SMT = "/sys/devices/system/cpu/smt/control"
MAIN_PID = "$(systemctl show -P MainPID nodeagent)"
LAUNCHER_PID = "$(systemctl show -P MainPID nodeagent-launcher)"
PIN = (
    "printf '[Service]\\nExecStart=sleep infinity\\nAllowedCPUs=0-7\\n' >/run/systemd/system/ledger.service; systemctl daemon-reload;"
    " systemctl start ledger; nodeagent pin ledger --cpus 1 --memory 16Mi --wait"
)
AS_BEFORE_PINNED = "test $(systemctl show -P AllowedCPUs ledger) = 0-7"
KUBELET = (
    "mkdir -p /var/lib/kubelet; echo 'cpuManagerPolicy: static' >/var/lib/kubelet/config.yaml;"
    """ echo '{"policyName":"static","defaultCpuSet":"0-15","checksum":1}' >/var/lib/kubelet/cpu_manager_state;"""
    " printf '#!/bin/sh\\nwhile sleep 1d; do :; done\\n' >/root/kubelet; chmod +x /root/kubelet;"
    " systemd-run --quiet --unit kubelet /root/kubelet --config=/var/lib/kubelet/config.yaml"
)
"""A program with the name, the command line and the files of a kubelet that allocates CPUs."""
OWN_DISK = (
    f"systemctl stop nodeagent; cp -a {STATE} /root/state; mount -t tmpfs -o size=256k,mode=0700 small {STATE};"
    f" cp -a /root/state/. {STATE}; systemctl start nodeagent"
)
"""Give the state a small file system of its own."""
USUAL_DISK = (
    f"systemctl stop nodeagent; rm -r /root/state; cp -a {STATE} /root/state; umount {STATE};"
    f" cp -a /root/state/. {STATE}; rm -r /root/state; systemctl start nodeagent"
)

DAYS: dict[str, dict[str, Mishap]] = {
    "the agent": {
        "stopped": Mishap("systemctl stop nodeagent", ("agent_away",), CONTROL, in_metrics=False),
        "killed": Mishap(f"kill -9 {MAIN_PID}; sleep 1; {READY}"),
        "hangs": Mishap(f"kill -STOP {MAIN_PID}", ("agent_away",), f"kill -CONT {MAIN_PID}", in_metrics=False),
        "started twice": Mishap(f"! nodeagent run --config {CONFIG} 2>/root/second"),
        "restarted with its launcher": Mishap("systemctl reload nodeagent-launcher; systemctl restart nodeagent"),
        "port taken": Mishap(
            "systemctl stop nodeagent; systemd-run --unit taken --quiet python3 -c"
            " 'import socket,time; s=socket.create_server((\"127.0.0.1\",9753)); time.sleep(1e6)';"
            " until ss -ltn | grep -q :9753; do sleep 0.1; done; systemctl start nodeagent",
            ("service",),
            "systemctl stop taken",
            in_metrics=False,
        ),
        "everything stopped while a unit is pinned": Mishap(
            f"{PIN}; systemctl stop nodeagent nodeagent-pods && {AS_BEFORE_PINNED}",
            ("agent_away",),
            f"{LAUNCH}; {CONTROL} && ! {AS_BEFORE_PINNED} && nodeagent unpin ledger --wait && {AS_BEFORE_PINNED} && systemctl stop ledger",
            in_metrics=False,
            ends_pods=True,
        ),
    },
    "the configuration": {
        "typo": Mishap(f"{KEEP}; echo 'maxPodz: 3' >>{CONFIG}", ("configuration_refused",), RESTORE),
        "typo and reload": Mishap(
            f"echo 'maxPodz: 3' >>{CONFIG}; ! {RELOAD}", ("configuration_refused",), f"{RESTORE}; {RELOAD}"
        ),
        "typo and restart": Mishap(
            f"echo 'maxPodz: 3' >>{CONFIG}; systemctl restart nodeagent",
            ("configuration_refused",),
            f"{RESTORE}; {RELOAD}",
        ),
        "typo and reboot, after which a CPU is back": Mishap(
            "systemctl enable --quiet nodeagent; echo 0 >/sys/devices/system/cpu/cpu15/online; systemctl restart nodeagent;"
            f" echo 'maxPodz: 3' >>{CONFIG}",
            ("configuration_refused",),
            f"systemctl disable --quiet nodeagent; {RESTORE}; {RELOAD}",
            reboots=True,
            ends_pods=True,
            shows="the machine differs from nodeagent_state",
        ),
        "typo, restart and no last valid one": Mishap(
            f"echo 'maxPodz: 3' >>{CONFIG}; rm {STATE}/last_config.yaml; ! systemctl restart nodeagent",
            ("agent_away",),
            f"{RESTORE}; {CONTROL}",
            in_metrics=False,
        ),
        "not reloaded": Mishap(
            f"sed -i 's/^fileCheckFrequency: .*/fileCheckFrequency: 19s/' {CONFIG}", ("configuration_changed",), RELOAD
        ),
        "undone": Mishap(RESTORE, ("configuration_changed",), RELOAD),
        "deleted": Mishap(f"rm {CONFIG}", ("configuration_refused",), RESTORE),
        "drop-in that closes the state directory": Mishap(
            drop_in(f"ReadOnlyPaths={STATE}") + f"; {LATE}", ("state", "sync", "refused"), f"{NO_LATE}; {NO_DROP_IN}"
        ),
        "drop-in with another user": Mishap(drop_in("User=nobody"), ("agent_away",), NO_DROP_IN, in_metrics=False),
    },
    "the launcher": {
        "killed": Mishap(f"kill -9 {LAUNCHER_PID}"),
        "hangs": Mishap(f"kill -STOP {LAUNCHER_PID}", ("launcher", "sync"), f"kill -CONT {LAUNCHER_PID}"),
        "its socket deleted": Mishap(
            "rm /run/nodeagent-pods/launcher.sock", ("launcher", "sync"), "systemctl reload nodeagent-launcher"
        ),
        "its unit stopped": Mishap("systemctl stop nodeagent-pods", ("launcher", "sync"), LAUNCH, ends_pods=True),
    },
    "files": {
        "state of a later release": Mishap(  # rebuilt from the running pods
            f'systemctl stop nodeagent; sed -i \'1s/"version":[0-9]*/"version":99/\' {STATE}/nodeagent_state; systemctl start nodeagent'
        ),
        "state directory deleted": Mishap(f"rm -r {STATE}", ("state",), "systemctl restart nodeagent"),
        "disk full": Mishap(
            f"{OWN_DISK}; ! cat /dev/zero >{STATE}/filler 2>/dev/null; {LATE}",
            ("state", "sync", "refused"),
            f"{NO_LATE}; rm {STATE}/filler; {USUAL_DISK}",
        ),
        "disk read-only": Mishap(
            f"{OWN_DISK}; mount -o remount,ro {STATE}; {LATE}",
            ("state", "sync", "refused"),
            f"{NO_LATE}; mount -o remount,rw {STATE}; {USUAL_DISK}",
        ),
        "state files deleted": Mishap(f"rm -r {STATE}/*"),
        "runtime directory full": Mishap(
            f"! cat /dev/zero >/run/filler 2>/dev/null; {LATE}", ("other",), f"rm /run/filler; {NO_LATE}"
        ),
        "runtime directory deleted": Mishap("rm -r /run/nodeagent", ("agent_away",), "systemctl restart nodeagent"),
        "manifests deleted with their directory": Mishap(
            f"mv {MANIFESTS} /root/manifests", ("manifest",), f"mv /root/manifests {MANIFESTS}"
        ),
    },
    "pods": {
        "misspelt": Mishap(f"echo 'kind: [' >{MANIFESTS}/late.json", ("manifest",), NO_LATE),
        "copied": Mishap(f"cp {MANIFESTS}/pinned.json {MANIFESTS}/late.json", ("manifest",), NO_LATE),
        "too large": Mishap(manifest(pod("late", container("app", SLEEP, cpu="64"))), ("refused",), NO_LATE),
        "keeps failing": Mishap(manifest(pod("late", container("app", ["false"]))), ("crash_loop",), NO_LATE),
        "takes the last shared CPUs": Mishap(
            f"{KEEP}; {STRICT}; systemctl restart nodeagent;"
            + manifest(pod("late", container("app", SLEEP, cpu="13"))),
            ("starved",),
            f"{NO_LATE}; {RESTORE}; systemctl restart nodeagent",
        ),
        "a unit that isn't there is pinned": Mishap(
            "! nodeagent pin nosuch.service --cpus 1 --memory 16Mi 2>/dev/null"
        ),
        "a job without enough memory": Mishap(
            "! nodeagent job --cpus 1 --memory 64Mi -- dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null"
        ),
        "its process killed": Mishap(f"kill -9 $(cat {PINNED}/payload/cgroup.procs)", ends_pods=True),
    },
    "the machine": {
        "CPU offline": Mishap(
            f"cpu=$(sed s/.*[,-]// {PINNED}/cpuset.cpus); echo $cpu >/root/cpu; echo 0 >/sys/devices/system/cpu/cpu$cpu/online",
            ("degraded", "promise"),
            "echo 1 >/sys/devices/system/cpu/cpu$(cat /root/cpu)/online",
        ),
        "SMT off": Mishap(
            f"echo off >{SMT}",
            ("degraded", "promise"),
            f"echo on >{SMT}; for f in /sys/devices/system/cpu/cpu*/online; do echo 1 >$f; done",
        ),
        "clock back by a day": Mishap("date -s '1 day ago'"),
        "clock in another year": Mishap("date -s '1 year'; sleep 1; date -s '364 days ago'"),
        "journal restarted": Mishap("systemctl restart systemd-journald"),
    },
    "other programs": {
        "writes a cgroup": Mishap(f"echo 0 >{PINNED}/cpuset.cpus"),
        "moves a process to the agent's cgroup": Mishap(
            "sleep infinity & echo $! >/sys/fs/cgroup/system.slice/nodeagent.service/cgroup.procs"
        ),
        "runs in a cgroup of its own among the pods'": Mishap(
            f"mkdir -p {ROOT}/poduid-mine/app; sleep infinity & echo $! >{ROOT}/poduid-mine/app/cgroup.procs",
            ("orphan",),
            f"echo 1 >{ROOT}/poduid-mine/app/cgroup.kill",
        ),
        "a kubelet allocates CPUs, too": Mishap(
            f"{KEEP}; {KUBELET}; sed -i 's|^nriSocket: .*|nriSocket: /run/nri.sock|' {CONFIG}; systemctl restart nodeagent",
            ("service",),
            f"systemctl stop kubelet; rm -r /var/lib/kubelet; {RESTORE}; systemctl restart nodeagent",
            shows="must be none where nodeagent places containers",
        ),
        "freezes a pod": Mishap(f"echo 1 >{PINNED}/cgroup.freeze"),
        "takes a controller away": Mishap(f"echo -memory >{PINNED}/../cgroup.subtree_control"),
        "takes CPUs of all pods": Mishap(
            "systemctl set-property --runtime nodeagent.slice AllowedCPUs=0,15",
            ("degraded", "promise", "other"),
            "systemctl set-property --runtime nodeagent.slice AllowedCPUs=0-15",
        ),
    },
}


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    node = Node(four_nodes)
    node.guest.put(SCRIPT, (CONTRIB / "check/nodeagent-health").read_bytes(), mode=0o755)
    node.apply(*PODS)
    node.wait_running("pinned", "shared")
    return node


def sources(node: Node) -> tuple[set[str], set[str]]:
    """Return the kinds of problems by the agent's line in systemd, and by the metrics."""
    line, *kinds = node.run(SOURCES, check=False).stdout.splitlines() or [""]
    return (named_kinds(line) if line else set()), set(kinds)


def wait_named(node: Node, named: tuple[str, ...], *, in_metrics: bool = True) -> None:
    """Wait until all sources name these kinds, and no others."""
    expected = set(named)
    if not {"agent_away", "other_release"} & expected:
        both = (expected, expected if in_metrics else set())
        node.until(lambda: sources(node) == both or None, lambda: f"{sources(node)} instead of {both}", 40)

    def look() -> bool | None:
        told = node.run(SCRIPT, check=False)
        return (told.returncode == (2 if named else 0) and set(told.stdout.split()) == expected) or None

    def problem() -> str:
        told = node.run(SCRIPT, check=False)
        return f"{told.returncode}, {told.stdout}{told.stderr} instead of {named}: {node.run('nodeagent inspect', check=False).stdout}"

    node.until(look, problem, 20)


def placed(node: Node) -> str:
    return node.run(f"cat {PINNED}/cpuset.cpus {PINNED}/payload/cgroup.procs", check=False).stdout


def play(node: Node, mishap: Mishap) -> None:
    """Do it, have it named, mend it, and make sure that all is well again."""
    before = placed(node)
    node.run(mishap.does)
    if mishap.reboots:
        node.guest.reboot()
    if mishap.named:
        wait_named(node, mishap.named, in_metrics=mishap.in_metrics)
    if mishap.shows:
        assert mishap.shows in " ".join(node.run("nodeagent inspect", check=False).stdout.split())
    node.run(mishap.mends)
    wait_named(node, ())
    cpus, pid = before.split()
    if mishap.ends_pods:
        pid = placed(node).split()[1]
    assert placed(node).split() == [cpus, pid]


@pytest.mark.parametrize("day", DAYS)
def test_each_mishap_is_named_right_and_over_once_it_is_mended(node: Node, day: str) -> None:
    for name, mishap in DAYS[day].items():
        try:
            play(node, mishap)
        except Exception as err:
            err.add_note(f"{day}: {name}")
            raise


SWITCH = "systemctl restart nodeagent && systemctl reload nodeagent-launcher"
FORMER_CONFIG = '{"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "stateRecovery": "strict"}'
RELEASES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("the former release is installed and not started", installs("former"), ("other_release",)),
    ("it doesn't know fields of the configuration", f"{KEEP}; ! {SWITCH}", ("agent_away",)),
    (
        "it doesn't know the version of the state",
        f"echo '{FORMER_CONFIG}' >{CONFIG}; systemctl reset-failed; ! {SWITCH}",
        ("agent_away",),
    ),
    ("downgraded", f"sed -i s/strict/recover/ {CONFIG}; systemctl reset-failed; {SWITCH}", ("other_release",)),
    ("this release is installed and not started", installs("nodeagent"), ("other_release",)),
    ("upgraded", f"{RESTORE}; {SWITCH}", ()),
)
"""Steps of a downgrade and of the upgrade after it, each with what is named then."""


@pytest.mark.long
@pytest.mark.reinstalls
def test_each_step_of_a_downgrade_and_an_upgrade_is_named_right(node: Node) -> None:
    put_former_release(node)
    before = placed(node)
    for step, script, named in RELEASES:
        try:
            node.run(script, timeout_seconds=INSTALL_SECONDS)
            wait_named(node, named)
        except Exception as err:
            err.add_note(step)
            raise
        assert placed(node) == before, step
