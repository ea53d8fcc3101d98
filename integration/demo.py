"""`make demo`: the main job on a real kernel. Every phase is printed with the time it took; nothing is staged but the machine."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import TWO_SOCKETS
from integration.guest.phases import phase
from integration.guest.releases import release_of

EXAMPLES = Path(__file__).parent.parent / "examples"
MANIFESTS = "/etc/nodeagent/manifests"
STEPS = (
    ("guaranteed.yaml", "a Guaranteed pod: whole cores of its own"),
    ("burstable.yaml", "a Burstable pod: the shared pool, without those cores"),
    ("init-and-sidecar.yaml", "init container, sidecar and app: the app takes over what its init container had"),
)
_PODS_MOVED = ("nodeagent_", "process_", "python_")


def main() -> int:
    began = time.monotonic()
    image = guest_image(release_of(12))
    with phase("booting a machine with 2 sockets, 2 NUMA nodes, 16 CPUs"):
        guest = Guest.boot(image, TWO_SOCKETS)
    with guest:
        with phase("waiting for nodeagent.service"):
            guest.run("systemctl is-active --quiet nodeagent || systemctl start nodeagent", timeout_seconds=60)
        show(guest, "The machine, as nodeagent sees it", "nodeagent topology")
        before = metrics(guest)
        for name, what in STEPS:
            with phase(f"{name}: {what}"):
                guest.put(f"{MANIFESTS}/{name}", (EXAMPLES / name).read_bytes())
                wait_until(guest, lambda doc, n=name: is_settled(doc, n), f"the pods of {name} to run")
            show(guest, "nodeagent inspect", "nodeagent inspect")
        show(
            guest,
            "The pinned process itself",
            "grep -H . /proc/$(pgrep -o -f 'while :')/cgroup; grep _allowed_list /proc/$(pgrep -o -f 'while :')/status",
        )
        show(guest, "kubelet's checkpoint, byte for byte", "cat /var/lib/nodeagent/cpu_manager_state; echo")
        print_moved(before, metrics(guest))
        with phase("deleting guaranteed.yaml: its CPUs come back when its last process has gone"):
            guest.run(f"rm {MANIFESTS}/guaranteed.yaml")
            wait_until(guest, lambda doc: "guaranteed.yaml" not in sources(doc), "the pod to be gone")
        show(guest, "nodeagent inspect", "nodeagent inspect")
        with phase("restarting nodeagent.service under the running pods"):
            there = footprint(guest)
            guest.run("systemctl restart nodeagent", timeout_seconds=60)
            after = footprint(guest)
        if there != after:
            print(f"something moved:\n{there}\n{after}", file=sys.stderr)
            return 1
        print(f"nothing moved: the same {len(there.splitlines())} process ids and cgroup values before and after")
    print(f"\nAll of it took {time.monotonic() - began:.0f} s. A shell on such a machine: make guest")
    return 0


def show(guest: Guest, title: str, command: str) -> None:
    print(f"\n── {title}\n{guest.run(command, check=False).stdout}", flush=True)


def wait_until(guest: Guest, holds: Callable[[dict], bool], what: str) -> None:
    deadline = time.monotonic() + guest.patience(60)
    while True:
        answer = guest.run("nodeagent inspect -o json --no-host-processes", check=False)
        if answer.returncode in {0, 3} and holds(json.loads(answer.stdout)):
            return
        if time.monotonic() > deadline:
            journal = guest.run("journalctl -u nodeagent -n 40 --no-pager", check=False).stdout
            raise TimeoutError(f"waited in vain for {what}:\n{answer.stdout}{answer.stderr}\n{journal}")


def sources(document: dict) -> list[str]:
    return [pod["source"] for pod in document["pods"]]


def is_settled(document: dict, source: str) -> bool:
    pods = [pod for pod in document["pods"] if pod["source"] == source]
    return bool(pods) and not document["differences"] and all(pod["phase"] in {"Running", "Succeeded"} for pod in pods)


def metrics(guest: Guest) -> dict[str, str]:
    text = guest.run("curl -sS http://127.0.0.1:9753/metrics").stdout
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))


def print_moved(before: dict[str, str], after: dict[str, str]) -> None:
    print("\n── Metrics that moved")
    for series, value in sorted(after.items()):
        if value != before.get(series) and not series.startswith(_PODS_MOVED):
            print(f"{series} {before.get(series, '0')} -> {value}")
    print(flush=True)


def footprint(guest: Guest) -> str:
    """Every process of the pods and every value in their cgroups."""
    return guest.run(
        "cd /sys/fs/cgroup$(systemctl show -P ControlGroup nodeagent-pods.service) &&"
        " find . -path '*pod*' \\( -name cgroup.procs -o -name 'cpuset.*' -o -name cpu.max -o -name cpu.weight -o -name memory.max \\)"
        " -exec grep -H . {} + | sort"
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
