"""The certificate of a run says whether anything disturbed it, and names it, on a real kernel."""

import json
from dataclasses import dataclass

import pytest

from integration.guest.guest import Guest
from integration.isolation import NEW_IRQS
from integration.node import CONFIG, ROOT, Document, Node
from integration.test_interference import INSTANCES, INTRUDER, NOW_AND_THEN, WITHOUT_END, last_of
from integration.test_job import BOUNDS

JOB = "nodeagent job --cpus 2 --memory 64Mi"
WORK = "-- bash -c 'until [ $SECONDS -ge 2 ]; do :; done'"

SHORT = "for i in {{1..20000}}; do :; done"


REMOTE = """cat >/run/remote.py <<END
import ctypes, sys, time
mask = ctypes.c_ulong(1 << int(sys.argv[1]))
if ctypes.CDLL(None, use_errno=True).syscall(238, 2, ctypes.byref(mask), ctypes.c_ulong(64)) != 0:  # set_mempolicy, MPOL_BIND
    sys.exit(str(ctypes.get_errno()))
held = b"x" * (24 << 20)
time.sleep(0.5)
END"""
LARGE = "/var/tmp/large"
"""A file without content: what is read of it takes memory of its reader, and no disk interrupts anybody."""
SIBLINGS = INTRUDER.replace("CPUAffinity={cpu}", "AllowedCPUs=$(({cpu} ^ 1))")
"""On the other thread of the CPU's core, by a cgroup: kernel 6.1 forgets an affinity when the cpuset of a cgroup above changes."""
SERIAL = "/proc/irq/4/smp_affinity"
WRITER = """systemd-run -q --collect --unit=writer -p CPUAffinity=0 python3 -S -c '
import os, time
port = os.open("/dev/ttyS0", os.O_WRONLY)
while True:
    os.write(port, b".")
    time.sleep(0.001)'"""
"""On another CPU than the serial port interrupts. It pauses, as one interrupt sends all that is there."""
OWN_CGROUP = "cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/..; "
QUOTA = "echo 20000 100000"


@dataclass(frozen=True)
class Disturbance:
    """A run that is disturbed. All scripts are formatted with a CPU of the job."""

    name: str
    begin: str = "true"
    options: str = "--cpus 2 --memory 64Mi"
    work: str = SHORT
    end: str = "true"
    host: str = "partition"
    """Whether the host's processes are kept off. Otherwise they disturb, too."""
    source: str | None = None


DISTURBANCES = {
    "process": Disturbance(
        "other-tasks", INTRUDER + NOW_AND_THEN, end="systemctl stop intruder", host="none", source="bash"
    ),
    "sibling": Disturbance(
        "sibling", SIBLINGS + WITHOUT_END, options="--cpus 1 --memory 64Mi", end="systemctl stop intruder"
    ),
    "interrupts": Disturbance(
        "interrupts",
        f"echo {{cpu}} >{SERIAL}_list; {WRITER}",
        end=f"systemctl stop writer; cat {NEW_IRQS} >{SERIAL}",
        source="IRQ 4 ttyS0",
    ),
    "memory-pressure": Disturbance(
        "memory-pressure",
        f"truncate -s 128M {LARGE}",
        options="--cpus 2 --memory 32Mi",
        work=f"cat {LARGE} >/dev/null",
        end=f"rm {LARGE}",
    ),
    "remote-memory": Disturbance("remote-memory", REMOTE, work="python3 -S /run/remote.py 1"),
    "quota": Disturbance("throttling", work=f"{OWN_CGROUP}{QUOTA} >cpu.max; {SHORT}"),
    "pods-quota": Disturbance(
        "throttling",
        f"{QUOTA} >{ROOT}/cpu.max",
        end=f"echo max >{ROOT}/cpu.max",
        source=ROOT.removeprefix("/sys/fs/cgroup"),
    ),
}
"""By what is done. An emulated processor has no frequencies and no heat, and test_steal.py has a hypervisor that takes time."""


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def report(node: Node, file: str) -> Document:
    document: Document = json.loads(node.guest.get(file))
    return document


def test_a_quiet_run_is_clean_and_a_process_on_its_cpus_is_named_first(node: Node) -> None:
    done = node.run(f"{JOB} --report /run/clean.json --require-clean {WORK}", check=False)
    clean = report(node, "/run/clean.json")
    assert (done.returncode, clean["verdict"]) == (0, "clean"), (done.stderr, clean)
    assert clean["others"]["complete"]
    assert clean["cgroup"]["cpuMicroseconds"] > 1_000_000
    assert clean["exit"] == {"status": 0, "signal": None}
    assert clean["mainThread"]["migrations"] is not None
    assert clean["node"]["kernel"] == node.run("uname -r").stdout.strip()
    assert clean["node"]["configurationHash"]

    for intruder in (NOW_AND_THEN, WITHOUT_END):
        node.run((INTRUDER + intruder).format(cpu=last_of(clean["exclusiveCPUs"])))
        done = node.run(f"{JOB} --report /run/disturbed.json --require-clean {WORK}", check=False)
        node.run("systemctl stop intruder")
        disturbed = report(node, "/run/disturbed.json")
        assert (done.returncode, disturbed["verdict"]) == (123, "disturbed"), (done.stderr, disturbed)
        assert disturbed["exclusiveCPUs"] == clean["exclusiveCPUs"]
        assert (disturbed["disturbances"][0]["name"], disturbed["disturbances"][0]["source"]) == ("other-tasks", "bash")
        assert disturbed["others"]["tasks"][0]["of"] == "/system.slice/intruder.service"
        said = node.run("nodeagent report compare /run/clean.json /run/disturbed.json").stdout
        assert "\n  1. other tasks ran on its CPUs " in said
    assert node.run(f"ls {INSTANCES}").stdout == "", "nothing is left of it in the kernel"


def run_disturbed(node: Node, kind: str, repeats: int) -> list[Document]:
    """Run a command as one job that is disturbed; return the reports."""
    one = DISTURBANCES[kind]
    node.run(f"nodeagent job {one.options} --until-free --report /run/before.json -- true")
    cpu = last_of(report(node, "/run/before.json")["exclusiveCPUs"])
    node.run(one.begin.format(cpu=cpu))
    try:
        return run_repeatedly(node, one.options, one.work.format(cpu=cpu), repeats)
    finally:
        node.run(one.end, check=False)


def assert_named_first(kind: str, found: list[Document], least: int) -> int:
    """Assert that so many reports name the disturbance first; return how many do."""
    one = DISTURBANCES[kind]
    first = [run["disturbances"][0] for run in found if run["verdict"] == "disturbed"]
    named = [name for name in first if name["name"] == one.name and one.source in {None, name["source"]}]
    assert len(named) >= least, [(run["verdict"], run["disturbances"]) for run in found]
    return len(named)


def run_repeatedly(node: Node, options: str, work: str, repeats: int) -> list[Document]:
    """Run a command as one job; return the reports."""
    reports = f"--report /run/one.json --repeat {repeats}"
    node.run(f"nodeagent job {options} {reports} -- bash -c '{work}'", timeout_seconds=60)
    numbers = [f"-{number}" for number in range(1, repeats + 1)] if repeats > 1 else [""]
    return [report(node, f"/run/one{number}.json") for number in numbers]


def test_a_user_without_rights_gets_all_that_may_be_known(node: Node) -> None:
    """The kernel counts no tasks then. Bound kernel threads have some of the time that isn't the job's."""
    node.run("groupadd -f runners; id runner || useradd -m -G runners runner")
    usual = node.guest.get(CONFIG)
    node.guest.put(CONFIG, usual.replace(b"jobs: ", BOUNDS))
    try:
        node.restart_agent()
        node.run(f"cd /tmp; runuser -u runner -- {JOB} --report one.json {WORK}")
    finally:
        node.guest.put(CONFIG, usual)
        node.restart_agent()
    found = report(node, "/tmp/one.json")
    assert found["others"]["microseconds"] is not None
    assert not found["others"]["complete"]
    assert not [one for one in found["others"]["tasks"] if (one["of"] or "").endswith("/payload")], "its own"
    reasons = {one["field"]: one["reason"] for one in found["unknown"]}
    assert reasons["others.tasks"].startswith("the kernel counts each task only for root")
