"""`python -m integration.guest_costs [PODS …]`: what an agent costs in a guest beside each number of pods, by default 0, 100 and 400.

It keeps the rows in benchmarks/results/guest.json; `make bench-docs` writes them into docs/performance.md. For a start, a C program makes
the same directories, values and syncs as the agent (bare_start.c). The machine is emulated, so of the times only the ratios say something
about real ones.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.__main__ import keep
from benchmarks.goals import Row
from benchmarks.report import aligned, document, table
from benchmarks.timing import Clock
from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import TWO_SOCKETS
from integration.guest.phases import phase
from integration.guest.releases import release_of
from integration.isolation import configuration
from integration.node import MANIFESTS, ROOT, STATE, Node, container, pod

PROGRAM = "/opt/bare_start"
STAMP = "/var/tmp/start/stamp"
ROUNDS = 5
PATIENCE_SECONDS = 300
_QUIET_SECONDS = 0.5
"""A turn is followed by the next one sooner than that."""
_VALUES = ("cpuset.cpus", "cpuset.mems", "cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "memory.oom.group")
_REMOVE = "while [ -d bare ]; do rmdir bare/app/payload bare/app bare 2>/dev/null; sleep 0.1; done"
_COMMAND = [PROGRAM, "stamp", STAMP]
STARTED = pod("started", container("app", _COMMAND, cpu="2", memory="64Mi"))
_BEFORE = {
    "processor time of the agent in a minute at rest": ("500 to 800 ms", "7,758 ms", "30,136 ms"),
    "wake-ups of the launcher in a minute at rest": ("", "", "32"),
    "memory of the agent": ("44 to 54 MiB", "56 MiB", "66 MiB"),
    "processor time of a restart": ("2,800 ms", "6,300 ms", "18,600 ms"),
    "from the manifest to the running process": ("260 ms", "3,500 ms", ""),
    "processor time of a start": ("370 ms", "5,600 ms", ""),
    "from the manifest to the running process, as a multiple of the C program's": ("1.9 to 3.8 ×", "26 to 50 ×", ""),
    "processor time of a start, as a multiple of the C program's": ("6 to 12 ×", "115 ×", ""),
    "processor time of `job --cpus 2 -- true`": ("1,900 ms", "12,900 ms", ""),
}
"""Former figures beside 0, 100 and 400 pods."""
_RATIO_GOALS = {
    ("processor time of a restart", 400): 2.0,
    ("processor time of `job --cpus 2 -- true`", 100): 1.3,
    ("from the manifest to the running process", 100): 1.3,
    ("processor time of a start", 100): 1.3,
}
_MEMORY_GOALS = {0: 40, 100: 44, 400: 50}


def main() -> int:
    counts = [int(text) for text in sys.argv[1:]] or [0, 100, 400]
    clock = Clock()
    clock.calibrate()
    clock.calibrate()
    with phase("booting"):
        guest = Guest.boot(guest_image(release_of(13)), TWO_SOCKETS)
    with guest:
        node = Node(guest)
        guest.put(PROGRAM, compiled(), 0o755)
        node.run(f"mkdir -p {STAMP.rpartition('/')[0]}; systemctl start nodeagent")
        found = document(clock, [*measure(node, counts), *measure_isolation(node)], ())
    keep("guest", found)
    print(*aligned(table(found, "before")), sep="\n")
    return 0


def measure(node: Node, counts: list[int]) -> Iterator[Row]:
    first: dict[str, float] = {}
    for count in counts:
        with phase(f"starting {count} pods"):
            others = tuple(f"other{number}" for number in range(count))
            node.apply(*(pod(name, container("app", ["sleep", "infinity"])) for name in others))
            node.wait_running(*others, seconds=PATIENCE_SECONDS)
        with phase(f"measuring beside {count} pods"):
            for name, value, unit, goal, is_ratio in measure_beside(node, count):
                before = dict(zip((0, 100, 400), _BEFORE.get(name, ()), strict=False)).get(count, "")
                yield Row("guest", f"{name}, beside {count} pods", value, value, goal, before, unit)
                if is_ratio:
                    ratio = value / first.setdefault(name, value)
                    if count:
                        most = _RATIO_GOALS.get((name, count))
                        yield Row("guest", f"{name}, {count} pods / {counts[0]}", ratio, ratio, most, "", "×")
        if others:
            node.delete(*others)
            node.wait(lambda state: not state["entries"], "all to go", of=others, seconds=PATIENCE_SECONDS)


def measure_beside(node: Node, count: int) -> Iterator[tuple[str, float, str, float | None, bool]]:
    """Yield names, values, units, goals, and whether the value is compared with the one beside no pods."""
    yield from measure_rest(node, count)
    node.run("systemctl restart nodeagent", timeout_seconds=PATIENCE_SECONDS)
    yield "processor time of a restart", used_ms_at_rest(node, f"/proc/{node.main_pid()}"), "ms", None, True
    node.wait_decided()
    job_ms = statistics.median(run_job(node) for _ in range(ROUNDS))
    yield "processor time of `job --cpus 2 -- true`", job_ms, "ms", None, True
    plan = make_plan(node)
    by_agent, by_program = zip(
        *((start_by_agent(node), start_by_program(node, plan)) for _ in range(ROUNDS)), strict=True
    )  # in turn, so that other load on the host hits both
    for which, name, most in (
        (0, "from the manifest to the running process", 2.5),
        (1, "processor time of a start", 5.0),
    ):
        agent, bare = (statistics.median(one[which] for one in rounds) for rounds in (by_agent, by_program))
        yield name, agent, "ms", None, True
        yield f"{name}, as a multiple of the C program's", agent / bare, "×", most, False


def measure_isolation(node: Node) -> Iterator[Row]:
    """Compare a start beside no pods with partitions and moved interrupts with one without."""
    with phase("measuring isolation"):
        kinds: dict[tuple[str, str], list[float]] = {("none", "none"): [], ("partition", "affinity"): []}
        for _ in range(ROUNDS):  # in turn, as above
            for kind, took in kinds.items():
                node.configure(configuration(*kind))
                took += [start_by_agent(node)[0] for _ in range(2)]
        without, isolated = map(statistics.median, kinds.values())
    name = "from the manifest to the running process, with isolation"
    yield Row("guest", name, isolated, isolated, None, "960 ms", "ms")
    yield Row("guest", f"{name} / without", isolated / without, isolated / without, 1.5, "", "×")


def run_job(node: Node) -> float:
    """Return the processor time of a job: of the client, the agent and the launcher."""
    service = f"/proc/{{{node.main_pid()},{node.main_pid('nodeagent-launcher')}}}"
    before = used_ms(node, service)
    text = node.run("bash -c 'nodeagent job --cpus 2 --memory 64Mi --until-free -- true; times'").stdout
    used = used_ms_at_rest(node, service) - before
    node.wait_decided()
    minutes = re.findall(r"(\d+)m([\d.]+)s", text.splitlines()[-1])  # of the children: user and system
    return used + sum(60_000 * int(m) + 1000 * float(s) for m, s in minutes)


def compiled() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "bare_start")
        source = Path(__file__).with_name("bare_start.c")
        subprocess.run(["cc", "-static", "-O2", "-Wall", "-o", program, source], check=True)
        return program.read_bytes()


def used_ms(node: Node, processes: str) -> float:
    """Return the processor time of some processes, given by a shell pattern of their directories in /proc."""
    text = node.run(f"cat {processes}/task/*/schedstat").stdout
    return sum(int(line.split()[0]) for line in text.splitlines()) / 1e6


def used_ms_at_rest(node: Node, processes: str) -> float:
    """Return the processor time of some processes once they use no more.

    Nothing is asked of the agent meanwhile: its answers, such as the metrics, would count.
    """
    before, used = -1.0, used_ms(node, processes)
    while used != before:
        node.run(f"sleep {_QUIET_SECONDS}")
        before, used = used, used_ms(node, processes)
    return used


def measure_rest(node: Node, count: int) -> Iterator[tuple[str, float, str, float | None, bool]]:
    """Measure what the agent and the launcher do in a minute in which nothing changes, and their memory."""
    node.wait_decided()
    node.run("sleep 60", timeout_seconds=PATIENCE_SECONDS)  # what is loaded or looked at once is over then
    services = {"agent": "nodeagent", "launcher": "nodeagent-launcher"}
    processes = {name: f"/proc/{node.main_pid(unit)}" for name, unit in services.items()}
    before = {name: (used_ms(node, process), count_wakeups(node, process)) for name, process in processes.items()}
    node.run("sleep 60", timeout_seconds=PATIENCE_SECONDS)
    goals = {"agent": (1000, 13, _MEMORY_GOALS.get(count)), "launcher": (None, 12, None)}
    for name, process in processes.items():
        cpu_ms, woken = used_ms(node, process) - before[name][0], count_wakeups(node, process) - before[name][1]
        memory = float(node.run(f"awk '/^VmRSS/ {{print $2 / 1024}}' {process}/status").stdout)
        for_cpu, for_woken, for_memory = goals[name]
        yield f"processor time of the {name} in a minute at rest", cpu_ms, "ms", for_cpu, False
        yield f"wake-ups of the {name} in a minute at rest", woken, "", for_woken, False
        yield f"memory of the {name}", memory, "MiB", for_memory, False


def count_wakeups(node: Node, process: str) -> int:
    """Return how often the threads of a process have waited for something so far."""
    text = node.run(f"cat {process}/task/*/status | awk '/^voluntary/ {{sum += $2}} END {{print sum}}'").stdout
    return int(text)


def start_by_agent(node: Node) -> tuple[float, float]:
    """Return the milliseconds until the process ran, and the processor time once the agent has nothing left to do."""
    hidden, service = f"{MANIFESTS}/.started.json", f"/proc/{{{node.main_pid()},{node.main_pid('nodeagent-launcher')}}}"
    node.guest.put(hidden, json.dumps(STARTED))
    node.wait_decided()
    before = used_ms(node, service)
    ran = node.run(f"{PROGRAM} drop {hidden} {MANIFESTS}/started.json {STAMP}", timeout_seconds=PATIENCE_SECONDS)
    took = used_ms_at_rest(node, service) - before
    node.wait_running("started")
    (started,) = node.pids(node.cgroup("started", "app"))
    took += used_ms(node, f"/proc/{started}")
    node.delete("started")
    node.wait_gone("started")
    return int(ran.stdout.split()[0]) / 1e6, took


def make_plan(node: Node) -> str:
    """Return the steps that make the pod as the agent has made it."""
    node.apply(STARTED)
    size = len(json.dumps(node.wait_running("started")))
    place = node.cgroup("started", "app").rpartition("/")[0]
    steps = []
    for below in ("", "/app", "/app/payload"):
        found = node.run(
            f"cd {place}{below}; grep -H '' {' '.join(_VALUES)} cgroup.subtree_control 2>/dev/null", check=False
        )
        values = dict(line.split(":", 1) for line in found.stdout.splitlines())
        controllers = values.pop("cgroup.subtree_control", "").split()
        steps.append(f"d {ROOT}/bare{below}")
        steps += [f"w {ROOT}/bare{below}/{name} {text}" for name, text in values.items() if text.split()[:1] != ["max"]]
        steps += [f"w {ROOT}/bare{below}/cgroup.subtree_control +{' +'.join(controllers)}"] * bool(controllers)
    steps += [f"s {STATE}/bare {size}", f"x {ROOT}/bare/app/payload"]
    node.delete("started")
    node.wait_gone("started")
    return "\n".join((*steps, ""))


def start_by_program(node: Node, plan: str) -> tuple[float, float]:
    node.guest.put("/opt/plan", plan)
    ran = node.run(f"{PROGRAM} replay /opt/plan {STAMP}", timeout_seconds=PATIENCE_SECONDS)
    started = node.run(f"cat {ROOT}/bare/app/payload/cgroup.procs").stdout.strip()
    wall, own = (int(text) / 1e6 for text in ran.stdout.split())
    took = own + used_ms(node, f"/proc/{started}")
    node.run(f"cd {ROOT}; echo 1 >bare/cgroup.kill; {_REMOVE}; rm {STATE}/bare")
    return wall, took


if __name__ == "__main__":
    sys.exit(main())
