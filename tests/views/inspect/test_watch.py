"""The live view: what is made of the kernel's counters, how a frame is laid out, what it costs, and a real terminal that is as before."""

import fcntl
import io
import itertools
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.main import main
from nodeagent.cli.support.terminal import Terminal
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.edge.kernel.usage import read_cpu_times_us, read_usage
from nodeagent.formats.kernel.usage import (
    NO_RATES,
    ContainerRate,
    ContainerUsage,
    CpuStat,
    Rates,
    UsageSample,
    compute_rates,
    parse_container_usage,
    remote_bytes,
    times_by_cpu,
)
from nodeagent.formats.node_view import NodeView, ViewReader, view_document
from nodeagent.formats.syntax.json_values import JsonValue
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.watch_text import JUST_BEGUN, DisplaySettings, Poll, render_frame
from nodeagent.views.interference.document import describe_idle_node
from tests.cli.test_cli_inspect import Host
from tests.support.figures import Recorder, report
from tests.support.inspected_nodes import World, everything, idle
from tests.support.pods import app, pod
from tests.support.world import MACHINE

CPU_STAT = "usage_usec 5000000\nuser_usec 1\nsystem_usec 2\nnr_periods 40\nnr_throttled 10\nthrottled_usec 77\n"
NUMA_STAT = "anon N0=4096 N1=8192\nfile N0=0 N1=4096\nshmem N0=9 N1=9\npgfault N0=1\n"


def sample(at_us: int, cpus: dict[int, tuple[int, int]] | None = None, **containers: CpuStat) -> UsageSample:
    return UsageSample(at_us, cpus or {}, {path: ContainerUsage(stat, None) for path, stat in containers.items()})


# Counters


def test_both_files_are_read_as_the_kernel_writes_them() -> None:
    assert parse_container_usage(CPU_STAT, NUMA_STAT) == ContainerUsage(
        CpuStat(5_000_000, 40, 10, 77), {0: 4096, 1: 12288}
    )


@pytest.mark.parametrize(
    ("cpu_stat", "numa_stat"),
    [(None, None), ("usage_usec x\n", "anon N0=x\n"), ("nr_periods 3\n", "anon 0=1\n"), ("", "file N=1\n")],
)
def test_what_cannot_be_read_is_not_known_and_not_0(cpu_stat: str | None, numa_stat: str | None) -> None:
    assert parse_container_usage(cpu_stat, numa_stat) == ContainerUsage(None, None)


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = sample(1_000_000, {0: (10, 100), 1: (5, 50), 3: (0, 7)}, a=CpuStat(1_000_000, 10, 2), b=CpuStat(7, 0, 0))
    after = sample(
        3_000_000,
        {0: (60, 200), 1: (5, 150), 2: (9, 9)},
        a=CpuStat(2_000_000, 30, 7),
        b=CpuStat(7, 0, 0),
        c=CpuStat(1, 0, 0),
    )
    assert compute_rates(before, after) == Rates(
        {0: 50, 1: 0}, {"a": ContainerRate(500, 25), "b": ContainerRate(0, None)}
    )


def test_counters_that_go_back_are_of_another_cgroup_and_no_rate() -> None:
    before, after = sample(0, a=CpuStat(9, 9, 9), b=CpuStat(9, 9, 9)), sample(5, a=CpuStat(8, 9, 9), b=CpuStat(9, 9, 8))
    assert compute_rates(before, after).containers == {}
    assert compute_rates(before, before) == Rates({}, {})


def test_remote_is_what_lies_on_nodes_without_any_of_its_cpus() -> None:
    usage = parse_container_usage(None, NUMA_STAT)
    assert remote_bytes(usage, NumaSet.of(0)) == 12288
    assert remote_bytes(usage, NumaSet.of(0, 1)) == 0
    assert remote_bytes(ContainerUsage(None, None), NumaSet.of(0)) is None


def test_the_kernels_own_counters_grow(tmp_path: Path) -> None:
    before = read_cpu_times_us()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = read_cpu_times_us()
    assert len(before) == len(after) == len(CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip()))
    assert sum(busy for busy, _ in after) > sum(busy for busy, _ in before)
    assert all(busy <= whole for busy, whole in after)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/cpu.stat").write_text("usage_usec 1\n")
    found = read_usage(str(tmp_path), {"a": "a", "b": "b"})
    assert (found["a"].cpu_stat, found["a"].numa_stat, found["b"].cpu_stat) == ("usage_usec 1\n", None, None)


# Frames


def look(view: NodeView, given: Rates = NO_RATES, containers: dict[str, ContainerUsage] | None = None) -> Poll:
    return Poll(inspect_node(view), view.node.rules.topology, UsageSample(0, {}, containers or {}), given, 12)


def busy() -> Poll:
    _, _, view = everything()
    given = Rates(
        {0: 3, 1: 100, 2: 50, 3: 0, 4: 13, 5: 99, 6: 25},
        {
            "poduid-web/app": ContainerRate(1990, None),
            "shared/pool/payload/burstable/poduid-batch/work": ContainerRate(1500, 87),
        },
    )
    remote = {"poduid-slot/slot": ContainerUsage(None, {0: 4096, 1: 3 << 20})}
    return look(view, given, remote)


def test_a_frame_as_it_is_shown() -> None:
    golden = Path(__file__).parents[2] / "golden/inspect-watch.txt"
    shown = "\n".join(render_frame(busy(), DisplaySettings(100, 24)).lines) + "\n"
    assert shown == golden.read_text(), f"if the new text is better, put it into {golden}"


@pytest.mark.parametrize(
    ("cpus", "used_milli", "mark"),
    [
        ({1: 100, 5: 30}, 1000, "OTHERS 30%"),
        ({1: 100, 5: 30}, 1299, ""),
        ({1: 100, 5: 30}, 1210, ""),
        ({1: 100, 5: 30}, 1200, "OTHERS 10%"),
        ({1: 100}, 0, ""),
        ({1: 100, 5: 30}, None, ""),
    ],
)
def test_the_load_of_others_on_exclusive_cpus_is_marked(
    cpus: dict[int, int], used_milli: int | None, mark: str
) -> None:
    world = World().add(pod("web", app("app", cpu="2", memory="64Mi"))).add(pod("any", app("work")))
    assert own_set_of(world.state.promises, "uid-web", "app") == CpuSet.of(1, 5)
    used = {} if used_milli is None else {"poduid-web/app": ContainerRate(used_milli, None)}
    shown = render_frame(look(world.view(), Rates({0: 90, **cpus}, used)), DisplaySettings(120))
    (line,) = [line for line in shown.lines if line.startswith("default/web app")]
    assert line.endswith(mark or "-")
    (line,) = [line for line in shown.lines if line.startswith("default/any work")]
    assert "OTHERS" not in line
    reported = [line for line in shown.lines if line.startswith("OTHERS")]
    assert reported == ([f"OTHERS on exclusive CPUs of 1 container: default/web app {mark.split()[1]}"] if mark else [])


def test_the_load_of_others_is_reported_for_the_container_that_runs_there_now() -> None:
    """An app has the CPUs that its init container had."""
    _, _, view = everything()
    rates = {path: ContainerRate(milli, None) for path, milli in (("poduid-web/setup", 0), ("poduid-web/app", 500))}
    shown = render_frame(look(view, Rates({1: 100, 5: 0}, rates)), DisplaySettings(120))
    assert [line for line in shown.lines if line.startswith("OTHERS")] == [
        "OTHERS on exclusive CPUs of 1 container: default/web app 50%"
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 4, 10, 50])
def test_no_frame_is_larger_than_its_terminal(width: int, height: int) -> None:
    shown = render_frame(busy(), DisplaySettings(width, height))
    assert len(shown.lines) <= height
    assert all(len(line) <= width for line in shown.lines)


def test_every_number_is_whole_at_80_columns() -> None:
    text = "\n".join(render_frame(busy(), DisplaySettings(80, None)).lines)
    assert all(part in text for part in ("1990m", "1500m", "87%", "3Mi", "DIFFERS", "Refused"))


@pytest.mark.parametrize("width", [70, 80, 120, 200])
def test_no_two_of_200_pods_with_long_names_look_alike(width: int) -> None:
    world = World(MACHINE, Placement("static", reserved_system_cpus=CpuSet.of(0)))
    for number in range(200):
        world.add(pod(f"a-very-long-name-that-a-team-gave-its-workload-{number}", app("app", cpu="100m", memory="8Mi")))
    shown = render_frame(look(world.view()), DisplaySettings(width))
    rows = [line.partition("  ")[0] for line in shown.lines[shown.heading + 1 :]]
    assert len(set(rows)) == len(rows) == 200
    assert all(name.endswith(" app") for name in rows)
    assert all("~" not in line for line in shown.lines) == (width >= 120)


def crowded() -> Poll:
    """200 pods on 256 CPUs. Each differs from the state, and others disturb many of them."""
    world = World(topology_from_spec("2s.4n.16c.2t"), Placement("static", reserved_system_cpus=CpuSet.of(0, 1)))
    for number in range(200):
        world.add(pod(f"batch-{number}", app("work", cpu="1" if number < 100 else "100m", memory="8Mi")))
    used = {f"poduid-batch-{number}/work": ContainerRate(123_456 if number % 2 else 0, 100) for number in range(200)}
    return look(world.view(), Rates(dict.fromkeys(range(256), 100), used))


def test_200_pods_with_every_mark_are_told_apart_at_80_columns() -> None:
    shown = render_frame(crowded(), DisplaySettings(80))
    rows = [line.partition("  ")[0] for line in shown.lines[shown.heading + 1 :]]
    assert len(set(rows)) == len(rows) == 200


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_line_that_is_cut_ends_with_a_mark_and_a_list_counts_what_it_leaves_out(width: int) -> None:
    shown = render_frame(crowded(), DisplaySettings(width))
    lines, whole = shown.lines, render_frame(crowded(), DisplaySettings(10_000)).lines
    for line, full in zip(lines[:3], whole[:3], strict=True):
        assert line == (full if len(full) <= width else f"{full[: width - 1]}~")
    lists = [line for line in lines[: shown.heading] if line.startswith(("DRIFT", "OTHERS"))]
    assert len(lists) == 2
    for line in lists:
        assert line.endswith("~") or re.search(r" and \d+ more$", line), line
        assert line.count(",") == 2 or width <= 80


def test_it_scrolls_no_further_than_to_the_last_row_and_sorts_by_what_is_asked() -> None:
    look_ = busy()
    every = render_frame(look_, DisplaySettings(100)).lines
    shown = render_frame(look_, DisplaySettings(100, 14, offset=999))
    assert shown.lines[-2] == every[-1]
    assert shown.offset + shown.page == len(every) - shown.heading - 1
    first = {
        sort: render_frame(look_, DisplaySettings(100, sort=sort)).lines[shown.heading + 1].split()[:2]
        for sort in ("CPU", "throttled", "remote memory")
    }
    assert first == {
        "CPU": ["default/web", "app"],
        "throttled": ["default/batch", "work"],
        "remote memory": ["default/slot", "slot"],
    }


def test_two_pods_of_one_name_are_both_listed() -> None:
    poll = busy()
    pods = poll.document["pods"]
    twice = replace(poll, document={**poll.document, "pods": [*pods, {**pods[0], "uid": "another"}]})
    lines = render_frame(twice, DisplaySettings(100)).lines
    assert len(lines) == len(render_frame(poll, DisplaySettings(100)).lines) + len(pods[0]["containers"])


def test_a_terminal_without_utf8_gets_digits() -> None:
    lines = render_frame(busy(), DisplaySettings(100, is_utf8=False)).lines
    assert all(line.isascii() for line in lines)
    assert next(line for line in lines if line.startswith("NUMA 1")).split()[3] == "502?", "CPUs 2, 3, 6, 7"


def test_an_idle_node_and_a_problem_are_reported() -> None:
    there = look(idle().view())
    assert "no drift" in render_frame(there, DisplaySettings(100)).lines
    assert render_frame(there, DisplaySettings(100, 24)).lines[-1].startswith("no containers")
    assert any(
        "NOT REFRESHED: gone" in line
        for line in render_frame(Poll(*list_of(there), "gone"), DisplaySettings(100)).lines
    )
    assert (
        "DRIFT unknown: the pods' cgroups cannot be read"
        in render_frame(look(idle().view(cgroups=None)), DisplaySettings(100)).lines
    )


def told(found: Any) -> list[str]:
    """What a frame says of interference."""
    lines = render_frame(replace(look(idle().view()), interference=found), DisplaySettings(200)).lines
    begins = [number for number, line in enumerate(lines) if line.startswith("INTERFERENCE")]
    return [] if not begins else [*lines[begins[0] : lines.index("", begins[0])]]


def claim(pod: str, *tasks: tuple[str, int, bool], interrupts: tuple[tuple[int, str, int], ...] = ()) -> dict[str, Any]:
    return {
        "pod": pod,
        "containers": ["app"],
        "cpus": "1,5",
        "alone": not any(movable for _, _, movable in tasks),
        "tasks": [
            {"name": name, "movable": movable, "microseconds": 100 * amount, "millicores": amount}
            for name, amount, movable in tasks
        ],
        "interrupts": [
            {"number": number, "name": name, "movable": None, "microseconds": 100 * amount, "millicores": amount}
            for number, name, amount in interrupts
        ],
    }


def counted(*claims: dict[str, Any], **more: Any) -> dict[str, Any]:
    return describe_idle_node() | {"microseconds": 1_040_000, "cpus": [*claims], **more}


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (None, []),
        (JUST_BEGUN, ["INTERFERENCE counted from now on"]),
        ("no tracefs (mount it)", ["INTERFERENCE unknown: no tracefs (mount it)"]),
        (describe_idle_node(), ["INTERFERENCE none: no pod has exclusive CPUs"]),
        (counted(claim("default/web", ("kworker/1:0", 9, False))), ["INTERFERENCE none in 1.0 s"]),
        (
            counted(claim("default/web", ("", 3, True), ("ksoftirqd/1", 9, False), interrupts=((24, "eth0", 5),))),
            ["INTERFERENCE 1 in 1.0 s:", "  default/web app: CPUs 1,5: IRQ 24 eth0 0.5%, (no name) 0.3%"],
        ),
        (
            counted(claim("default/web", *((f"task-{n}", 900 - n, True) for n in range(5)))),
            [
                "INTERFERENCE 1 in 1.0 s:",
                "  default/web app: CPUs 1,5: task-0 90.0%, task-1 89.9%, task-2 89.8% and 2 more",
            ],
        ),
        (
            counted(*(claim(f"default/{n}", ("bash", 10, True)) for n in range(5))),
            [
                "INTERFERENCE 5 in 1.0 s:",
                *(f"  default/{n} app: CPUs 1,5: bash 1.0%" for n in range(3)),
                "  and 2 more",
            ],
        ),
        (
            counted(claim("default/web"), dropped=3),
            ["INTERFERENCE none seen in 1.0 s (too many events to count them all: refresh more often, --interval 0.5)"],
        ),
        (
            counted(changed=[{"pod": "default/web", "cpus": "1"}]),
            ["INTERFERENCE none seen in 1.0 s (unknown for default/web: CPUs changed)"],
        ),
    ],
)
def test_who_ran_on_exclusive_cpus_is_told_if_asked_for(found: Any, lines: list[str]) -> None:
    assert told(found) == lines


def list_of(there: Poll) -> tuple[Any, ...]:
    return there.document, there.topology, there.sample, there.rates, there.cost_ms


def test_nothing_in_it_acts_on_the_terminal() -> None:
    lines = render_frame(look(idle().view(problems=("\x1b[2J\r\n",))), DisplaySettings(100)).lines
    assert all(line.isprintable() for line in lines)


def test_a_refresh_with_250_pods_fits_into_its_second_many_times(record_property: Recorder) -> None:
    world = World(MACHINE, Placement("static", reserved_system_cpus=CpuSet.of(0)))
    for number in range(250):
        world.add(pod(f"pod-{number}", app("app", cpu="100m", memory="8Mi")))
    read, view = ViewReader(), world.view()
    document = JsonValue(view_document(view))
    usage = {path: parse_container_usage(CPU_STAT, NUMA_STAT) for path in view.observed.cgroups or {}}
    read(document)
    began = time.process_time()
    assert read(JsonValue(view_document(view))).state == world.state
    there = Poll(inspect_node(view), world.managers.topology, UsageSample(0, {}, usage))
    shown = render_frame(there, DisplaySettings(120, 40))
    took = time.process_time() - began
    report(record_property, f"one refresh of 250 pods without the reading of files: {1000 * took:.0f} ms of CPU time")
    assert shown.lines[-1].startswith(f"1-{shown.page} of 250 by name")
    assert took < 1


# The terminal


class Screen:
    """A pseudo-terminal with the command on it."""

    def __init__(self, *words: str) -> None:
        self.main, self.side = pty.openpty()
        self.resize(24, 100)
        self.before = termios.tcgetattr(self.side)
        self.text = ""
        # As a terminal starts commands: whoever runs these tests may ignore Ctrl-C, and that is inherited.
        program = ["env", "--default-signal=INT", sys.executable, "-m", "nodeagent.cli.main", *words]
        environment = {**os.environ, "PYTHONUTF8": "1", "TERM": "xterm"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *program], stdin=self.side, stdout=self.side, stderr=self.side, env=environment
        )

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.main, keys)

    def wait(self, holds: Callable[[str], bool]) -> str:
        """Read until something holds of all that came since the last wait."""
        deadline = time.monotonic() + 30
        while not holds(self.text):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.main], [], [], max(0.0, left))
            assert ready, f"waited in vain: {self.text[-2000:]!r}"
            self.text += os.read(self.main, 65536).decode(errors="replace")
        observed, self.text = self.text, ""
        return observed

    def ended(self) -> int:
        status = self.process.wait(30)
        assert termios.tcgetattr(self.side) == self.before, "the terminal is as it was"
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.main)
        os.close(self.side)


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as directory:
        made = Host(Path(directory))
        made.start_daemon()
        yield made
        made.stop()


@pytest.fixture
def screen(host: Host) -> Iterator[Screen]:
    made = Screen("inspect", "--watch", "--interval", "0.1", *host.options)
    yield made
    made.close()


LEFT = "\x1b[?25h\x1b[?1049l"


def test_it_draws_refreshes_follows_keys_and_size_and_leaves_the_terminal_as_it_was(screen: Screen, host: Host) -> None:
    first = screen.wait(lambda text: "by name" in text)
    assert first.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert "default/web app" in first
    assert "no drift" in first
    host.drift()
    screen.wait(lambda text: "DRIFT 1: default/web app cpu.weight" in text and "DIFFERS" in text)
    screen.press(b"c")
    screen.wait(lambda text: "by CPU" in text)
    screen.resize(12, 60)
    screen.process.send_signal(signal.SIGWINCH)
    narrow = screen.wait(lambda text: text.count("\x1b[H") >= 3).split("\x1b[H")[-2]
    assert narrow.count("\r\n") < 12
    screen.press(b"q")
    screen.wait(lambda text: text.endswith(LEFT))
    assert screen.ended() == 0


@pytest.mark.parametrize(("key", "status"), [(b"\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_however_it_ends_the_terminal_is_as_it_was(screen: Screen, key: bytes | signal.Signals, status: int) -> None:
    screen.wait(lambda text: "by name" in text)
    if isinstance(key, bytes):
        screen.press(key)
    else:
        screen.process.send_signal(key)
    screen.wait(lambda text: LEFT in text)
    assert screen.ended() == status


def test_stopped_and_continued_it_leaves_the_screen_and_takes_it_again(screen: Screen) -> None:
    screen.wait(lambda text: "by name" in text)
    screen.process.send_signal(signal.SIGTSTP)
    screen.wait(lambda text: LEFT in text)
    _, stopped = os.waitpid(screen.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(stopped)
    screen.process.send_signal(signal.SIGCONT)
    screen.wait(lambda text: "\x1b[?1049h" in text and "by name" in text.rpartition("\x1b[?1049h")[2])
    screen.press(b"q")
    assert screen.wait(lambda text: text.endswith(LEFT))
    assert screen.ended() == 0


def test_a_signal_that_comes_in_the_middle_of_a_write_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    ours, theirs = pty.openpty()
    coming = iter([signal.SIGTSTP])

    class Interrupted(io.FileIO):
        def write(self, content: Any) -> int:
            for number in coming:
                signal.raise_signal(number)
            return super().write(content) or 0

    monkeypatch.setattr("os.kill", lambda *_: None)
    with (
        os.fdopen(ours, "rb"),
        os.fdopen(theirs) as keys,
        io.TextIOWrapper(io.BufferedWriter(Interrupted(writing, "w"))) as stream,
    ):
        monkeypatch.setattr("sys.stdin", keys)
        monkeypatch.setattr("sys.stdout", stream)
        with Terminal() as terminal:
            terminal.draw(["a line"])
        shown = os.read(reading, 1000).decode()
    os.close(reading)
    assert LEFT in shown.partition("a line")[0]
    assert shown.endswith(LEFT)


def test_an_agent_that_goes_is_reported_on_the_screen_with_what_was_last_seen(screen: Screen, host: Host) -> None:
    screen.wait(lambda text: "by name" in text)
    host.stop()
    shown = screen.wait(lambda text: "NOT REFRESHED" in text and "by name" in text.rpartition("NOT REFRESHED")[2])
    assert "default/web app" in shown


def test_frames_are_printed_where_there_is_no_terminal(
    host: Host, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(1)

    def times_of_the_machine() -> tuple[tuple[int, int], ...]:
        tick = next(ticks)
        return ((50 * tick, 100 * tick),) * 2

    monkeypatch.setattr("nodeagent.cli.commands.watch.read_cpu_times_us", times_of_the_machine)
    assert main(["inspect", "--watch", "--frames", "2", "--interval", "0.1", *host.options]) == 0
    out, err = capfd.readouterr()
    assert (out.count("agent runs"), out.count("CONTAINER"), err) == (2, 2, "")
    assert "\x1b" not in out
    first = out.split("CONTAINER")[0]
    assert "NUMA 0     0-1 ▅▅ 50%" in first, "the load of each CPU is measured before the first frame, too"


def test_frames_say_that_nobody_has_exclusive_cpus_if_asked_who_ran_there(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", "--watch", "--interference", "--frames", "2", "--interval", "0.1"]
    assert main([*words, *host.options]) == 0
    out, err = capfd.readouterr()
    assert (out.count("INTERFERENCE none: no pod has exclusive CPUs\n"), err) == (2, "")


@pytest.mark.parametrize(
    ("words", "problem", "step"),
    [
        (["web"], "all pods", "leave it out"),
        (["-o", "json"], "as text", "leave it out"),
        (["--machine", "x"], "for this node", "leave out --watch"),
        (["--root", "x"], "for this node", "leave out --watch"),
    ],
)
def test_what_excludes_a_watch_is_exit_status_64(
    words: list[str], problem: str, step: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["inspect", "--watch", "--frames", "1", *words])
    assert end.value.code == 64
    out, err = capfd.readouterr()
    assert out == ""
    message, hint = err.splitlines()[-2:]
    assert problem in message
    assert step in message
    assert hint == "hint: nodeagent inspect --help lists the arguments"


def test_a_watch_is_drawn_on_terminals_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--watch"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    message, hint = err.splitlines()
    assert "the output of this command isn't one" in message
    assert "--frames 10" in hint


def test_while_a_cpu_comes_or_goes_nobodys_load_is_reported() -> None:
    assert times_by_cpu(((1, 2),) * 7, CpuSet.parse("0-7")) == {}
    times = times_by_cpu([(n, 9) for n in range(7)], CpuSet.parse("0-1,3-7"))
    assert times == {cpu: (n, 9) for n, cpu in enumerate((0, 1, 3, 4, 5, 6, 7))}
