"""`make demo`: the main job on a real kernel. Every phase is printed with the time it took; only the machine is emulated."""

import re
import sys
import time
from pathlib import Path

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import TWO_SOCKETS
from integration.guest.phases import phase
from integration.guest.releases import release_of
from integration.node import MANIFESTS, ROOT, STATE, Node

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = (
    ("guaranteed", "a Guaranteed pod: whole cores of its own"),
    ("burstable", "a Burstable pod: the shared pool, without those cores"),
    ("init-and-sidecar", "init container, sidecar and app: the app takes over what its init container had"),
)
_UNTOLD = re.compile(r"process_|python_|\w+_(bucket|created)\b")
"""Series of the process and its interpreter, and those that only detail another series."""


def main() -> int:
    began = time.monotonic()
    image = guest_image(release_of(12))
    with phase("booting a machine with 2 sockets, 2 NUMA nodes, 16 CPUs"):
        guest = Guest.boot(image, TWO_SOCKETS)
    with guest:
        node = Node(guest)
        with phase("waiting for nodeagent.service"):
            node.run("systemctl is-active --quiet nodeagent || systemctl start nodeagent")
        stayed = demonstrate(node)
    print(f"\nAll of it took {time.monotonic() - began:.0f} s. A shell on such a machine: make guest")
    return 0 if stayed else 1


def demonstrate(node: Node) -> bool:
    """Show the main job on a node without pods; return whether a restart of the agent left everything as it was."""
    show(node, "The machine, as nodeagent sees it", "nodeagent topology")
    before = node.metrics()
    for name, what in STEPS:
        with phase(f"{name}.yaml: {what}"):
            node.put_manifest(f"{name}.yaml", (EXAMPLES / f"{name}.yaml").read_bytes(), name)
            node.wait_running(name)
        show(node, "nodeagent inspect", "nodeagent inspect")
    show(
        node,
        "The pinned process itself",
        f"p=$(cat $(find {ROOT} -path '*/worker/payload/cgroup.procs')); grep -H . /proc/$p/cgroup; grep _allowed_list /proc/$p/status",
    )
    show(node, "kubelet's checkpoint, byte for byte", f"cat {STATE}/cpu_manager_state; echo")
    print_moved(before, node.metrics())
    with phase("deleting guaranteed.yaml: its CPUs come back when its last process has gone"):
        node.run(f"rm {MANIFESTS}/guaranteed.yaml")
        node.wait_gone("guaranteed")
    show(node, "nodeagent inspect", "nodeagent inspect")
    with phase("restarting nodeagent.service under the running pods"):
        there = node.footprint()
        node.restart_agent()
        after = node.footprint()
    if there != after:
        print(f"something moved:\n{there}\n{after}", file=sys.stderr)
    else:
        print(f"nothing moved: the same {len(there.splitlines())} process ids and cgroup values before and after")
    return there == after


def show(node: Node, title: str, command: str) -> None:
    print(f"\n── {title}\n{node.run(command, check=False).stdout}", flush=True)


def print_moved(before: dict[str, float], after: dict[str, float]) -> None:
    print("\n── Metrics that moved")
    for series, value in sorted(after.items()):
        if value != before.get(series, 0) and not _UNTOLD.match(series):
            print(f"{series} {before.get(series, 0):g} -> {value:g}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
