"""Device plugins of another process misbehave in 200 ways. The agent, what it does for other pods and its memory stay as they were."""

import ctypes
import gc
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.daemon.plugins.device_plugins import CALL_SECONDS, DevicePlugins
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.turn.wakeups import WakeUpReason
from tests.daemon.test_device_plugins_in_turns import serving
from tests.daemon.test_recovery import two_nodes
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.figures import Recorder, report
from tests.support.hostile_plugin import KINDS, RESOURCES, resource_of
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import node

COUNT = 200
ROUNDS_KEPT = 8
"""Rounds after which a round's pods are deleted."""
PAGE_BYTES = resource.getpagesize()
LIBC = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""


@pytest.fixture(autouse=True)
def keep_little() -> None:
    """Have malloc return freed memory as systemd/nodeagent.service does: by itself it keeps more and more of large buffers."""
    assert LIBC.mallopt(M_TRIM_THRESHOLD, 65536)
    assert LIBC.mallopt(M_MMAP_THRESHOLD, 65536)


def resident_bytes() -> int:
    """Return what the process holds, without what malloc keeps for later."""
    gc.collect()
    LIBC.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@contextmanager
def hostile(directory: Path) -> Iterator[Callable[[int], None]]:
    """Yield a function that lets the misbehaviour with a number begin, and returns once the plugin has registered."""
    command = [sys.executable, "-m", "tests.support.hostile_plugin", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def play(number: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{number}\n"

        yield play
        process.kill()


def _plugin_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("devices ", "plugin-"))]


def median_cpu(rounds: Iterable[tuple[float, float]]) -> float:
    return statistics.median(cpu for _, cpu in rounds)


def test_200_misbehaviours_leave_the_agent_other_pods_and_the_memory_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Recorder
) -> None:
    machine = Machine(node(two_nodes()))
    daemon = Daemon(machine, tmp_path / "agent", steps=Steps())
    (tmp_path / "agent").mkdir()
    daemon.plugins = plugins = DevicePlugins(
        tmp_path / "kubelet.sock", lambda: daemon.agent.wakeups.wake(WakeUpReason.DEVICES), make_log(daemon.log)
    )
    rounds = []

    def do_round(name: str, wanted: str = "") -> tuple[float, float]:
        """Add a pod that asks for devices, and another one. Return the seconds and the seconds of CPU until the other one is admitted."""
        asking = pod(f"asking-{name}", app(cpu="100m", devices={wanted: 1} if wanted else {}))
        rounds.append((asking, pod(f"plain-{name}", app(cpu="100m"))))
        daemon.files.pods = tuple(one for pods in rounds[-ROUNDS_KEPT:] for one in pods)
        began, began_cpu = time.monotonic(), time.thread_time()
        daemon.turn()
        took = time.monotonic() - began, time.thread_time() - began_cpu
        admitted = {entry.pod.uid for entry in daemon.agent.state.entries if entry.is_active}
        assert f"uid-plain-{name}" in admitted, "the first turn admits it, whatever plugins do"
        daemon.agent.wakeups.wait(0.05)
        daemon.turn()
        return took

    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        with serving(daemon, plugins, tmp_path):
            before = [do_round(f"before-{n}") for n in range(20)]
            during, bytes_then = [], 0
            with hostile(tmp_path) as play:
                for number in range(COUNT):
                    play(number)
                    for _ in range(10):  # some never report anything
                        pools = {one.resource: one for one in plugins.pools()}
                        if pools[resource_of(number)].healthy or resource_of(number) in "".join(plugins.problems()):
                            break
                        daemon.agent.wakeups.wait(0.05)
                    during.append(do_round(str(number), resource_of(number)))
                    if number == len(KINDS):  # each kind has been there, and what they need for ever is loaded
                        bytes_then = resident_bytes()
                assert len(_plugin_threads()) <= RESOURCES
            while any(entry.is_undecided for entry in daemon.agent.view.state.entries):
                daemon.agent.wakeups.wait(0.1)
                daemon.turn()
            while _plugin_threads():  # what they are reading is not kept
                daemon.agent.wakeups.wait(0.1)
            grown_bytes = resident_bytes() - bytes_then
            after = [do_round(f"after-{n}") for n in range(20)]
    refusals = [line for line in daemon.said() if line["event"] == "pod_refused"]
    assert len(refusals) > COUNT // 2
    for line in refusals:
        number = int(line["pod"].rpartition("-")[2])
        assert resource_of(number) in f"{line['reason']} {line['message']}", line
    gone = [line["problem"] for line in daemon.said() if line["event"] == "device_plugin_gone"]
    assert "reading its lists has failed" not in "".join(gone), "each is an answer or an end"
    assert max(during)[0] < CALL_SECONDS, "no turn waits for a plugin"
    # Without misbehaviours, too, a turn costs more while the machine is busy with other work, which may begin in between.
    took, calm = median_cpu(during), max(map(median_cpu, (before, after)))
    assert took < 2 * calm + 0.01
    assert grown_bytes < 8 * 2**20
    report(
        record_property,
        f"{COUNT} misbehaviours: a turn takes {took * 1000:.1f} ms of CPU (without: {calm * 1000:.1f}), the memory has grown by "
        f"{grown_bytes / 2**20:.1f} MiB, {len(refusals)} pods refused, {len(gone)} ends of plugins",
    )
