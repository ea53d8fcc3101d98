"""Pods come and go at random while the scheduler is recorded. Runs in the guest; everything it learns goes to standard output.

It steers by what the kernel shows (files that the containers' own processes make, cgroups that are there or not), never by what the
agent says.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from integration.overlap import wire, workload
from integration.overlap.disturbance import Disturbance, DisturbanceError, Fault
from integration.overlap.trace import Trace
from integration.overlap.wire import Kind
from integration.overlap.workload import PodPlan

MANIFESTS = Path("/etc/nodeagent/manifests")
_LAUNCHER = "nodeagent-launcher.service"
_PODS = "nodeagent-pods.service"
_SYSTEMD = 1
_LOOK_SECONDS = 0.2
_LATENESS_NS = 2_000_000_000
"""An event may become readable that long after its time: the emulated CPU that writes it may have to wait for a real one."""
_SHARED_PODS = (3, 6)
_KEPT_FREE_CPUS = 4
_EVENT_SECONDS = 150


class ChurnError(Exception):
    """What was to happen did not."""


@dataclass(slots=True)
class Pod:
    plan: PodPlan
    cgroups: tuple[Path, ...]
    """Where its cgroup may be; which one depends on its QoS class."""
    since: float
    is_ready: bool = False
    is_leaving: bool = False


@dataclass(slots=True)
class Churn:
    """A run of a number of arrivals and departures, several of them under way at once."""

    chance: random.Random
    events: int
    at_once: int
    cgroup: Path
    exclusive_cpus: int
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
            if pod.is_leaving and not any(path.exists() for path in pod.cgroups):
                del self.pods[name]
                for file in workload.READY.glob(f"{name}-*"):
                    file.unlink()
                happened.append(_happened("departed", pod, now))
            elif not pod.is_ready and ready.issuperset(pod.plan.ready_files()):
                pod.is_ready = True
                happened.append({**_happened("arrived", pod, now), "promised": workload.promised(pod.plan)})
            elif (pod.is_leaving or not pod.is_ready) and now - pod.since > _EVENT_SECONDS:
                what = "leave" if pod.is_leaving else "start"
                raise ChurnError(f"{name} ({pod.plan}) did not {what} within {_EVENT_SECONDS} s")
        self.done += len(happened)
        return happened

    def act(self, now: float) -> None:
        """Begin new arrivals and departures, as many as may be under way at once."""
        while self.begun < self.events and self.begun - self.done < self.at_once and self._begin(now):
            self.begun += 1

    def _begin(self, now: float) -> bool:
        """Begin one, at random among those that are possible; False: none is."""
        settled = [pod for pod in self.pods.values() if pod.is_ready and not pod.is_leaving]
        shared = [pod for pod in self.pods.values() if not pod.plan.cpus]
        settled_shared = [pod for pod in settled if not pod.plan.cpus]
        room = self.exclusive_cpus - sum(pod.plan.exclusive_cpus for pod in self.pods.values())
        least, most = _SHARED_PODS
        if len(shared) < least:
            return self._arrive(now, PodPlan(self.made))
        moves = ["exclusive"] * 4 if room > 0 else []
        moves += ["shared"] if len(shared) < most else []
        moves += ["depart"] * 3 if [pod for pod in settled if pod.plan.cpus] else []
        moves += ["depart shared"] if len(settled_shared) > least else []
        if not moves:
            return False
        match self.chance.choice(moves):
            case "exclusive":
                return self._arrive(now, self._exclusive_plan(room))
            case "shared":
                return self._arrive(now, PodPlan(self.made))
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
        return PodPlan(self.made, (first, *second), init, is_mixed=is_mixed, is_short=is_short)

    def _arrive(self, now: float, plan: PodPlan) -> bool:
        self.made += 1
        parents = ("", "burstable", "besteffort")
        paths = tuple(self.cgroup / parent / f"pod{plan.name}" for parent in parents)
        self.pods[plan.name] = Pod(plan, paths, now)
        draft = MANIFESTS / f".{plan.name}"
        draft.write_text(workload.manifest(plan))
        draft.rename(MANIFESTS / f"{plan.name}.json")
        return True

    def _depart(self, now: float, pod: Pod) -> bool:
        pod.is_leaving, pod.since = True, now
        (MANIFESTS / f"{pod.plan.name}.json").unlink()
        return True


def _happened(what: str, pod: Pod, now: float) -> dict[str, object]:
    seconds = round(now - pod.since, 3)
    return {"event": what, "pod": pod.plan.name, "cpus": pod.plan.cpus, "seconds": seconds}


def cgroup_of(unit: str) -> Path:
    return Path("/sys/fs/cgroup" + _property(unit, "ControlGroup"))


def _property(unit: str, name: str) -> str:
    command = ("systemctl", "show", "--property", name, "--value", unit)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _remove_all(churn: Churn) -> None:
    """Leave the node as it was found."""
    for name in churn.pods:
        (MANIFESTS / f"{name}.json").unlink(missing_ok=True)
    limit = time.monotonic() + _EVENT_SECONDS
    while any(path.exists() for pod in churn.pods.values() for path in pod.cgroups):
        if time.monotonic() > limit:
            raise ChurnError(f"the pods' cgroups are still there: {sorted(churn.pods)}")
        time.sleep(_LOOK_SECONDS)


def run(options: argparse.Namespace) -> None:
    send = sys.stdout.buffer.write
    launcher = _property(_LAUNCHER, "MainPID")
    pods = cgroup_of(_PODS)
    disturbance = Disturbance(random.Random(options.seed), pods, options.disturbed_every, options.fault)
    room = (os.cpu_count() or 1) - _KEPT_FREE_CPUS - disturbance.most_away()
    churn = Churn(random.Random(options.seed), options.events, options.at_once, pods, room)
    workload.install()
    trace = Trace()
    cursor = _journal_end()
    began = time.monotonic()
    try:
        # systemd, too: a launcher that dies has a successor
        trace.start((_SYSTEMD, int(launcher)))
        send(wire.record(Kind.FORMATS, json.dumps(trace.formats()).encode()))
        while not churn.is_over():
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
        summary |= {"faults": disturbance.counts, "changes": disturbance.changes}
        send(wire.record(Kind.SUMMARY, json.dumps(summary).encode()))
        sys.stdout.flush()
    finally:
        disturbance.end()
        _remove_all(churn)
        trace.discard()


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
    try:
        run(parser.parse_args())
    except (ChurnError, DisturbanceError) as err:
        print(f"churn: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
