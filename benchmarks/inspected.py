"""A node for commands: an agent's answer of its state on a socket, and plain files in the place of its cgroups."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.cgroup_layout import PAYLOAD, payload_path
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.state import run_id
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.formats.kernel.cgroup_values import EFFECTIVE_CPUS, EFFECTIVE_MEMS, format_value
from nodeagent.formats.node_view import NodeView, view_document
from nodeagent.formats.syntax.bind_address import UnixAddress
from tests.daemon.test_load import MACHINE_64, Quick, agent_of, directories, live, running
from tests.support.daemon_model import Daemon
from tests.support.world import node

EXCLUSIVE = 20
"""Of the pods, each with a CPU of its own."""
_EMPTY = (CpuSet(), NumaSet())


def manifest(number: int) -> str:
    """A pod with one container."""
    cpus = "1" if number < EXCLUSIVE else "10m"
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number:04}}}\nspec:\n  containers:\n"
        f"  - {{name: main, command: [run], resources: {{limits: {{cpu: {cpus}, memory: 1Mi}}}}}}\n"
    )


@contextmanager
def rest_agent(pods: int) -> Iterator[Daemon]:
    """Yields an agent over models that has these pods, and nothing to do."""
    with tempfile.TemporaryDirectory() as directory:
        manifests, state = directories(Path(directory))
        for number in range(pods):
            (manifests / f"{number:04}.yaml").write_text(manifest(number))
        machine = Quick(node(MACHINE_64))
        with agent_of(machine.node, machine, manifests, state) as daemon:
            live(daemon, lambda: running(daemon) == pods, WakeUpReason.START)
            daemon.rest()
            yield daemon


@contextmanager
def serve_node(pods: int) -> Iterator[str]:
    """Yields the path of the agent's socket."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        with rest_agent(pods) as daemon:
            view = replace(daemon.agent.view, cgroup_root=str(base / "cgroups"))
            write_cgroups(base / "cgroups", daemon.machine.observed(), processes_of(view))
        assert not view.problems, view.problems
        document = view_document(view)
        api = LocalApi(reads={"state": lambda _: document}, writes={}, owner=os.geteuid(), group=None)
        thread = ServingThread(lambda *_: None)
        socket = str(base / "agent.sock")
        server = thread.serve(listen(UnixAddress(socket)), api)
        try:
            yield socket
        finally:
            server.close()
            thread.stop()


def processes_of(view: NodeView) -> dict[str, int]:
    """The main process of each container, by the path of its cgroup."""
    pids = view.pids or {}
    return {
        entry.container_path(status.name): pids[run_id(entry, status)]
        for entry in view.state.entries
        for status in entry.containers
        if run_id(entry, status) in pids
    }


def write_cgroups(root: Path, cgroups: Mapping[str, ObservedCgroup], processes: Mapping[str, int]) -> None:
    for path, cgroup in cgroups.items():
        (root / path / PAYLOAD).mkdir(parents=True, exist_ok=True)
        files = {
            "cgroup.controllers": " ".join(cgroup.controllers),
            "cgroup.subtree_control": " ".join(cgroup.subtree_control),
            "cgroup.events": f"populated {int(cgroup.is_populated)}\nfrozen {int(cgroup.is_frozen)}\n",
            "cgroup.procs": "",
            "memory.events": f"oom_kill {cgroup.oom_kills}\n",
            EFFECTIVE_CPUS: str(cgroup.cpus_effective or MACHINE_64.online),
            EFFECTIVE_MEMS: str(cgroup.mems_effective or MACHINE_64.memory_nodes),
            **{
                attribute.value: format_value(value) if value not in _EMPTY else ""
                for attribute, value in cgroup.attributes
            },
        }
        if cgroup.get(Attribute.FALLBACK_CPUS) is None:
            (root / path / PAYLOAD).rmdir()
        for name, text in files.items():
            (root / path / name).write_text(text)
    for path, pid in processes.items():
        (root / payload_path(path) / "cgroup.procs").write_text(f"{pid}\n")
