"""Pods come and go at random while the scheduler is recorded. Runs in the guest; everything it learns goes to standard output.

It steers by what the kernel shows (files that the containers' own processes make, cgroups that are there or not), never by what the
agent says.
"""

import argparse
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from integration.overlap import wire, workload
from integration.overlap.cpuset_watch import Change, CpusetWatch
from integration.overlap.disturbance import Disturbance, DisturbanceError, Fault
from integration.overlap.trace import Trace
from integration.overlap.wire import Kind
from integration.overlap.workload import Means, PodPlan

MANIFESTS = Path("/etc/nodeagent/manifests")
_LAUNCHER = "nodeagent-launcher.service"
_PODS = "nodeagent-pods.service"
_SYSTEMD = 1
_LOOK_SECONDS = 0.2
_LATENESS_NS = 2_000_000_000
"""An event may become readable that long after its time: the emulated CPU that writes it may have to wait for a real one."""
_SHARED_PODS = (3, 6)
_KEPT_FREE_CPUS = 4
_OF_OTHER_MEANS = 3
"""Jobs, exclusive and shared units at one time: so many of each at most."""
_MOST_MORE = 3
"""CPUs that a resize brings beside those that a container was admitted with."""
_EVENT_SECONDS = 300


class ChurnError(Exception):
    """What was to happen did not."""


@dataclass(slots=True)
class Pod:
    plan: PodPlan
    cgroups: tuple[Path, ...]
    """Where its cgroup may be; which one depends on its QoS class."""
    since: float
    asks: subprocess.Popen[bytes] | None = None
    """Where it takes a command: the last one."""
    is_ready: bool = False
    is_leaving: bool = False
    resizes: dict[str, Path] | None = None
    """While it is being resized: the containers' cgroups."""
    has_had: int = 0
    """CPUs that it may still have, while it is being resized."""


@dataclass(slots=True)
class Churn:
    """A run of a number of arrivals and departures, several of them under way at once."""

    chance: random.Random
    events: int
    at_once: int
    cgroup: Path
    exclusive_cpus: int
    means: frozenset[Means] = frozenset()
    """Other than manifests."""
    watch: CpusetWatch | None = None
    """Pods are resized if there is one."""
    begun: int = 0
    done: int = 0
    made: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)

    def is_over(self) -> bool:
        return self.done >= self.events

    def look(self, now: float) -> list[dict[str, object]]:
        """Take note of what has happened, and give it."""
        ready = {entry.name for entry in os.scandir(workload.READY)}
        happened = []
        for name, pod in tuple(self.pods.items()):
            if pod.is_leaving and not _left(pod):
                del self.pods[name]
                for file in workload.READY.glob(f"{name}-*"):
                    file.unlink()
                happened.append(_happened("departed", pod, now))
            elif not pod.is_ready and ready.issuperset(pod.plan.ready_files()):
                pod.is_ready = True
                cgroups = workload.cgroups(pod.plan)
                if pod.plan.means is not Means.MANIFEST:
                    # the kernel may have removed those of a short pod's by now, but not of these
                    pod.cgroups = (*pod.cgroups, *(Path("/sys/fs/cgroup" + path) for path in cgroups.values()))
                promised = workload.promised(pod.plan)
                happened.append({**_happened("arrived", pod, now), "promised": promised, "cgroups": cgroups})
            elif pod.resizes is not None and self._is_resized(pod):
                happened.append({**_happened("resized", pod, now), "resizes": self._end_resize(pod)})
            elif (pod.is_leaving or not pod.is_ready or pod.resizes is not None) and now - pod.since > _EVENT_SECONDS:
                what = "leave" if pod.is_leaving else "start" if pod.resizes is None else "get its CPUs"
                raise ChurnError(f"{name} ({pod.plan}) did not {what} within {_EVENT_SECONDS} s: {_left(pod)}")
        self.done += len(happened)
        return happened

    def act(self, now: float) -> None:
        """Begin new arrivals and departures, as many as may be under way at once."""
        while self.begun < self.events and self.begun - self.done < self.at_once and self._begin(now):
            self.begun += 1

    def _begin(self, now: float) -> bool:
        """Begin one, at random among those that are possible; False: none is."""
        settled = [pod for pod in self.pods.values() if _is_settled(pod)]
        shared = [pod for pod in self.pods.values() if not pod.plan.cpus]
        settled_shared = [pod for pod in settled if not pod.plan.cpus]
        room = self.exclusive_cpus - sum(max(pod.plan.exclusive_cpus, pod.has_had) for pod in self.pods.values())
        least, most = _SHARED_PODS
        if len(shared) < least:
            return self._arrive(now, PodPlan(self.made))
        moves = ["exclusive"] * 4 if room > 0 else []
        for means in sorted(self.means, key=lambda one: one.value):
            count = sum(pod.plan.means is means and bool(pod.plan.cpus) for pod in self.pods.values())
            moves += [means.value] * 2 if room > 0 and count < _OF_OTHER_MEANS else []
        moves += ["shared"] if len(shared) < most else []
        moves += ["depart"] * 3 if [pod for pod in settled if pod.plan.cpus] else []
        resizable = [(pod, counts) for pod in settled if (counts := _other_amounts(pod.plan, room))]
        moves += ["resize"] * 24 if resizable else []
        moves += ["depart shared"] if len(settled_shared) > least else []
        if not moves:
            return False
        match self.chance.choice(moves):
            case "exclusive":
                return self._arrive(now, self._exclusive_plan(room))
            case Means.JOB.value | Means.UNIT.value as asked:
                return self._arrive(now, PodPlan(self.made, (self.chance.randint(1, min(3, room)),), Means(asked)))
            case "shared" if Means.UNIT in self.means and self.chance.random() < 0.4:
                return self._arrive(now, PodPlan(self.made, means=Means.UNIT))
            case "shared":
                return self._arrive(now, PodPlan(self.made))
            case "resize":
                pod, amounts = self.chance.choice(resizable)
                return self._resize(now, pod, self.chance.choice(amounts))
            case "depart":
                return self._depart(now, self.chance.choice([pod for pod in settled if pod.plan.cpus]))
            case _:
                return self._depart(now, self.chance.choice(settled_shared))

    def _exclusive_plan(self, room: int) -> PodPlan:
        first = self.chance.randint(1, min(4, room))
        rest = min(4, room - first)
        second = (self.chance.randint(1, rest),) if rest > 0 and self.chance.random() < 0.2 else ()
        init = self.chance.randint(1, min(4, room)) if self.chance.random() < 0.15 else None
        # never restarted, it would be over before its app containers if the exit code of `init` were lost with a launcher
        is_short = self.chance.random() < 0.15 and init is None
        is_mixed = self.chance.random() < 0.25
        if self.watch is not None and self.chance.random() < 0.7:
            return PodPlan(self.made, (first, *second), resized=(first, *second))
        return PodPlan(self.made, (first, *second), init_cpus=init, is_mixed=is_mixed, is_short=is_short)

    def _arrive(self, now: float, plan: PodPlan) -> bool:
        self.made += 1
        parents = tuple(
            f"{pool}{qos}" for pool in ("", "shared/pool/payload/") for qos in ("", "burstable", "besteffort")
        )
        paths = tuple(self.cgroup / parent / f"pod{plan.name}" for parent in parents)
        pod = self.pods[plan.name] = Pod(plan, paths, now)
        if plan.means is not Means.MANIFEST:
            if plan.means is Means.UNIT:
                pod.cgroups = (Path("/sys/fs/cgroup/system.slice") / plan.unit,)
                (workload.UNITS / plan.unit).write_text(workload.unit_file(plan))
            pod.asks = _ask(workload.begin(plan))
            return True
        _write(plan)
        return True

    def _resize(self, now: float, pod: Pod, amounts: tuple[int, ...]) -> bool:
        assert self.watch is not None
        pod.has_had, pod.since = pod.plan.exclusive_cpus, now
        pod.plan = replace(pod.plan, resized=amounts)
        paths = {name: Path("/sys/fs/cgroup" + path) for name, path in workload.cgroups(pod.plan).items()}
        pod.resizes = paths
        for path in paths.values():
            self.watch.begin(path)
        _write(pod.plan)
        return True

    def _is_resized(self, pod: Pod) -> bool:
        assert self.watch is not None
        counts = zip(pod.plan.containers(), pod.plan.resized or (), strict=True)
        return all(self.watch.has((pod.resizes or {})[name], count) for name, count in counts)

    def _end_resize(self, pod: Pod) -> dict[str, list[Change]]:
        """Return the changes of each container's cpuset."""
        assert self.watch is not None
        changes = {name: self.watch.end(path) for name, path in (pod.resizes or {}).items()}
        pod.resizes, pod.has_had = None, 0
        return changes

    def _depart(self, now: float, pod: Pod) -> bool:
        pod.is_leaving, pod.since = True, now
        if pod.plan.means is not Means.MANIFEST:
            pod.asks = _ask(workload.end(pod.plan))
            return True
        (MANIFESTS / f"{pod.plan.name}.json").unlink()
        return True


def _other_amounts(plan: PodPlan, room: int) -> list[tuple[int, ...]]:
    """Return what a running pod may have instead: one container more, as far as there is room, or fewer, down to what it began with."""
    has = plan.resized or ()
    return [
        (*has[:index], count, *has[index + 1 :])
        for index, least in enumerate(plan.cpus[: len(has)])
        for count in range(least, min(least + _MOST_MORE, has[index] + room) + 1)
        if count != has[index]
    ]


def _write(plan: PodPlan) -> None:
    draft = MANIFESTS / f".{plan.name}"
    draft.write_text(workload.manifest(plan))
    draft.rename(MANIFESTS / f"{plan.name}.json")


def _is_settled(pod: Pod) -> bool:
    return pod.is_ready and not pod.is_leaving and pod.resizes is None and _is_answered(pod)


def _ask(commands: str) -> subprocess.Popen[bytes]:
    """Run commands without waiting for them; what they say goes where the churn's own errors go."""
    return subprocess.Popen(("sh", "-c", commands), stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _is_answered(pod: Pod) -> bool:
    return pod.asks is None or pod.asks.poll() is not None


def _happened(what: str, pod: Pod, now: float) -> dict[str, object]:
    seconds = round(now - pod.since, 3)
    return {"event": what, "pod": pod.plan.name, "cpus": pod.plan.resized or pod.plan.cpus, "seconds": seconds}


def cgroup_of(unit: str) -> Path:
    return Path("/sys/fs/cgroup" + _property(unit, "ControlGroup"))


def _property(unit: str, name: str) -> str:
    command = ("systemctl", "show", "--property", name, "--value", unit)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _remove_all(churn: Churn) -> None:
    """Leave the node as it was found."""
    for name, pod in churn.pods.items():
        (MANIFESTS / f"{name}.json").unlink(missing_ok=True)
        if pod.plan.means is not Means.MANIFEST and not pod.is_leaving:
            if pod.asks is not None and pod.plan.means is Means.UNIT:
                pod.asks.kill()  # it may wait to be begun
            pod.asks = _ask(workload.end(pod.plan))
    limit = time.monotonic() + _EVENT_SECONDS
    while left := [what for pod in churn.pods.values() for what in _left(pod)]:
        if time.monotonic() > limit:
            raise ChurnError(f"not gone, or not answered: {left}")
        time.sleep(_LOOK_SECONDS)


def _is_populated(cgroup: Path) -> bool:
    """Systemd keeps the empty cgroup of a unit that was told something while it was inactive."""
    try:
        return "populated 1" in (cgroup / "cgroup.events").read_text()
    except OSError:  # it is gone, or just going
        return False


def _left(pod: Pod) -> list[str]:
    """What is still there of a pod that is leaving: cgroups, and a command that has not ended."""
    is_units = pod.plan.means is Means.UNIT
    cgroups = [str(path) for path in pod.cgroups if (_is_populated(path) if is_units else path.exists())]
    return cgroups if _is_answered(pod) or pod.asks is None else [*cgroups, str(pod.asks.args)]


def run(options: argparse.Namespace) -> None:
    with ExitStack() as watching:
        _run(options, watching.enter_context(CpusetWatch()) if options.resizes else None)


def _run(options: argparse.Namespace, watch: CpusetWatch | None) -> None:
    send = sys.stdout.buffer.write
    launcher = _property(_LAUNCHER, "MainPID")
    pods = cgroup_of(_PODS)
    disturbance = Disturbance(random.Random(options.seed), pods, options.disturbed_every, options.fault)
    room = (os.cpu_count() or 1) - _KEPT_FREE_CPUS - disturbance.most_away() - options.spared_cpus
    means = frozenset(map(Means, options.means))
    churn = Churn(random.Random(options.seed), options.events, options.at_once, pods, room, means, watch)
    workload.install()
    trace = Trace()
    cursor = _journal_end()
    began = time.monotonic()
    try:
        # systemd, too: a launcher that dies has a successor
        trace.start((_SYSTEMD, int(launcher), *(thread for unit in options.unit for thread in _threads(unit))))
        send(wire.record(Kind.FORMATS, json.dumps(trace.formats()).encode()))
        while not churn.is_over() or (options.until_told and not _is_told()):
            churn.act(time.monotonic())
            disturbance.act(churn.done)
            _send_pages(trace.pages(), time.monotonic_ns() - _LATENESS_NS)
            for happened in churn.look(time.monotonic()):
                send(wire.record(Kind.POD_EVENT, json.dumps(happened).encode()))
            sys.stdout.flush()
            time.sleep(_LOOK_SECONDS)
        disturbance.end()
        seconds = time.monotonic() - began
        _send_pages(trace.stop(), None)
        send(wire.record(Kind.JOURNAL, _journal_since(cursor)))
        summary = {"pod_events": churn.done, "seconds": seconds, "losses": trace.losses()}
        summary |= {
            "faults": disturbance.counts,
            "changes": disturbance.changes,
            "interruptions": disturbance.interruptions,
        }
        send(wire.record(Kind.SUMMARY, json.dumps(summary).encode()))
        sys.stdout.flush()
    finally:
        disturbance.end()
        _remove_all(churn)
        trace.discard()


def _threads(unit: str) -> tuple[int, ...]:
    return tuple(int(entry.name) for entry in Path(f"/proc/{_property(unit, 'MainPID')}/task").iterdir())


def _is_told() -> bool:
    """Whether standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _journal_end() -> str:
    command = ("journalctl", "--lines=0", "--show-cursor", "--quiet")
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split("cursor:")[1].strip()


def _journal_since(cursor: str) -> bytes:
    """What has been logged since then, by anyone, a JSON object a line."""
    fields = "--output-fields=MESSAGE,PRIORITY,_SYSTEMD_UNIT,UNIT"
    command = ("journalctl", f"--after-cursor={cursor}", "--output=json", "--all", fields, "--quiet")
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _send_pages(pages: Iterable[tuple[int, bytes]], until_ns: int | None) -> None:
    for cpu, page in pages:
        sys.stdout.buffer.write(wire.record(Kind.PAGE, page, cpu))
    if until_ns is not None:
        sys.stdout.buffer.write(wire.until(until_ns))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--disturbed-every", type=int, default=0)
    parser.add_argument("--fault", type=Fault, action="append", default=[])
    parser.add_argument("--resizes", action="store_true", help="pods get other numbers of CPUs while they run")
    parser.add_argument("--means", action="append", default=[])
    parser.add_argument("--unit", action="append", default=[], help="its main process starts or moves containers, too")
    parser.add_argument("--spared-cpus", type=int, default=0, help="for others' exclusive containers")
    parser.add_argument("--until-told", action="store_true", help="go on until standard input ends")
    try:
        run(parser.parse_args())
    except (ChurnError, DisturbanceError) as err:
        print(f"churn: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
