# ruff: noqa: E501 (tables: one case, one line)
"""Every way to say no: each is provoked for real, names its value, and says the next step.

Classes of errors and reasons of refusal are counted as types: one without a row here fails, and so does a row that provokes nothing known.
"""

import argparse
import asyncio
import importlib
import json
import os
import pkgutil
import re
import resource
import socket
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from pwd import struct_passwd
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived
from msgspec.structs import replace

import nodeagent
from nodeagent.cli import main as program
from nodeagent.cli.commands import (
    apply,
    checkpoint,
    config,
    cpus,
    delete,
    exec as exec_command,
    explain,
    inspect,
    interference,
    job,
    pin,
    probe,
    release,
    report,
    retry,
    simulate,
    topology,
    unpin,
)
from nodeagent.cli.commands.reserve import find_user
from nodeagent.cli.commands.watch import watch
from nodeagent.cli.support import documents
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.counting import decode_counts
from nodeagent.cli.support.entering import check_container
from nodeagent.cli.support.manifest_changes import ManifestPlace
from nodeagent.cli.support.manifest_decisions import wait_for_agent
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import read_topology
from nodeagent.cli.support.node.this_node import read_this_node
from nodeagent.cli.support.other_user import become_user
from nodeagent.cli.support.pod_files import read_pods
from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Managers, Rejected, admit, initial
from nodeagent.core.admission.node_capacity import Allocatable, insufficient, usage_of
from nodeagent.core.admission.node_setup import on_machine
from nodeagent.core.admission.records import Records, start
from nodeagent.core.cgroups.write_order import SetAttribute
from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.metrics.agent_metrics import CAPACITY_REASONS
from nodeagent.core.model.cgroup import Attribute, ByteLimit
from nodeagent.core.model.claims import ClaimRequest
from nodeagent.core.model.config import Config, CpuPlugin, Errata, Placement, ReservedMemory
from nodeagent.core.model.device_pools import (
    DevicePluginFailedError,
    DevicePluginPostponedError,
    DevicePool,
    PoolDevice,
)
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod, Resources
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import (
    OF_QUEUE,
    OF_RESIZES,
    OF_RUNTIMES,
    RELEASED,
    RESERVATION_OVER,
    STATE_NOT_SAVED,
    UNIT_TAKEN,
    Reason,
    StartRefused,
)
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.memory.holdings import Block, MemoryBooks, MemoryHoldings
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.daemon.domains.jobs.job_queue import JobQueue
from nodeagent.daemon.domains.jobs.job_requests import JobRequests
from nodeagent.daemon.domains.jobs.jobs import Jobs
from nodeagent.daemon.domains.jobs.reservation_requests import ReservationRequests
from nodeagent.daemon.domains.jobs.reservations import Reservations
from nodeagent.daemon.domains.runtime.kubelet_pods import KUBELET, PodsApi
from nodeagent.daemon.domains.runtime.runtime_facts import runtime_facts
from nodeagent.daemon.domains.runtime.runtime_link import Push
from nodeagent.daemon.plugins.device_plugins import DEVICE_PLUGIN
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.start.recovery import read_recorded_devices
from nodeagent.daemon.start.releasing import find_pods_cgroup
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.edge.cgroups.cgroup_entry import enter_cgroup
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.cgroups.cgroupfs.watch import CgroupWatch
from nodeagent.edge.files import state_files
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.files.manifests import scan_manifests
from nodeagent.edge.files.placement_files import PlacementFiles
from nodeagent.edge.kernel import irqbalance, kernel_threads, uevents
from nodeagent.edge.kernel.sysfs import read_machine, write_setting
from nodeagent.edge.kernel.tracefs import record
from nodeagent.edge.processes.job_owners import open_caller
from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.service_manager import ServiceManager
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcServerKind
from nodeagent.edge.transport.grpc_server import GrpcConnection
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.local_api_client import call
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state
from nodeagent.formats.checkpoint.host_record import decode_record
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state, policies_of
from nodeagent.formats.checkpoint.sealed import unseal
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.kernel.host_files import read_value
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.manifest.job_pod import job_pod
from nodeagent.formats.manifest.pod_names import find_pods
from nodeagent.formats.scenario.scenario import scenario_from_text
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.syntax.findings import DocumentError
from nodeagent.formats.topology.topology_json import topology_from_document
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.formats.wire.exchange import Peer
from nodeagent.formats.wire.grpc_messages import add_frame
from nodeagent.formats.wire.launcher_protocol import decode_hello
from nodeagent.tools.fleet.ssh import run_on_host
from nodeagent.tools.probe.latency import parse_oslat
from nodeagent.tools.probe.latency_tools import check_installed
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render_in_full
from nodeagent.views.simulate.scenario_replay import replay
from nodeagent.views.wording.refusal_advice import ADVISED_REASONS, advise_next_step
from scripts.reference_errors import errors
from tests.core.resources.cpu.test_cpu_manager import ALPHA, START_REFUSALS
from tests.support import kernel_histograms
from tests.support.builders import GIB, MACHINE_A, PLRM, machine, managers
from tests.support.claims import claiming, request, template
from tests.support.fuzz_targets import POD_RESOURCES
from tests.support.inspected_nodes import NOW_MS, World
from tests.support.job_agent import answer_jobs
from tests.support.kubelet import serving
from tests.support.launcher_process import LauncherProcess, launcher, wait_for
from tests.support.nri_runtime import Refused, Runtime, mux_frame, ttrpc_frame
from tests.support.pods import app, exclusive, pod

__all__ = ["launcher"]
STEP = re.compile(
    r"`[^`]+`"  # a command, in backquotes
    r"|\b(nodeagent|systemctl|journalctl|sudo) [a-z-]+"  # or plain
    r"|(^|[\s('])/?[\w.-]+(/[\w.-]+)+|\b[\w-]+\.yaml\b|\bc(group|puset)\.[a-z*]+"  # a file
    r"|\b[a-z]+[A-Z]\w*"  # a configuration's field, fullyNamed
    r"|\b[A-Z][A-Za-z]+=|\b[A-Z]+_[A-Z]+\b|(^|\s)--[a-z]+"  # a unit's directive, a variable, an option
)
"""What a next step has in it: something to type, to open or to set."""


def modules() -> Iterator[ModuleType]:
    yield nodeagent
    for found in pkgutil.walk_packages(nodeagent.__path__, "nodeagent."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def subclasses(of: type) -> set[type]:
    below: set[type] = set(of.__subclasses__())
    return below.union(*(subclasses(one) for one in below)) if below else below


def error_classes() -> set[type]:
    assert list(modules())
    return {one for one in subclasses(NodeAgentError) if one.__module__.startswith("nodeagent.")}


# Error classes


@dataclass(frozen=True)
class Case:
    """One way to get an error of exactly this class."""

    kind: str
    name: str
    provoke: Callable[[Path], object]
    named: str
    """What its message must hold; {} is the test's directory."""


def socket_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


def machine_without_a_core_id(directory: Path) -> str:
    """A socket can't be opened (ENXIO), as a file of a CPU that has just gone can't be."""
    cpus = directory / "sys/devices/system/cpu"
    socket_file(cpus / "cpu0/topology/core_id")
    (cpus / "online").write_text("0\n")
    return str(directory)


def malformed_machine(directory: Path) -> str:
    cpus = directory / "sys/devices/system/cpu"
    (cpus / "cpu0/topology").mkdir(parents=True)
    (cpus / "online").write_text("zero\n")
    return str(directory)


@contextmanager
def without_file_descriptors() -> Iterator[None]:
    """The next file that this process opens is one too many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def watch_without_file_descriptors(watch: ManifestWatch | CgroupWatch) -> None:
    try:
        with without_file_descriptors():
            watch.renew()
    finally:
        watch.stop()


def cgroup_with(directory: Path, name: str, text: str) -> CgroupTree:
    (directory / "cgroup.controllers").write_text("cpu cpuset memory\n")
    (directory / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    (directory / name).write_text(text)
    return CgroupTree(str(directory))


def drain_without_launcher(directory: Path) -> None:
    group = directory / "pods/poduid-a"
    group.mkdir(parents=True)
    for path in (group.parent, group):
        (path / "cgroup.controllers").write_text("cpu cpuset\n")
        (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    config = Config(launcher_socket=f"{directory}/launcher.sock", cgroup_root=str(group.parent))
    find_pods_cgroup(config, "/nowhere")


def release_one_without_agent(directory: Path) -> None:
    config = directory / "config.yaml"
    config.write_text(json.dumps({"runtimeDirectory": f"{directory}/run", "stateDirectory": str(directory)}))
    state = NodeState(Promises().having(CpuBooks(default=CpuSet())))
    (directory / STATE_FILE).write_bytes(encode_state(state, policies_of(Config().placement)))
    words = ["web", "--config", str(config), "--socket", f"{directory}/agent.sock"]
    parser = ArgumentParser()
    release.add_arguments(parser)
    release.run(parser.parse_args(words))


def listener_that_says(answer: bytes, path: Path) -> str:
    """Answer one connection."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as channel:
            channel.recv(4096)
            channel.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return str(path)


def ask_an_agent(directory: Path, op: str) -> object:
    """Ask a real local API, which knows two operations."""
    thread = ServingThread(lambda *_: None)
    api = LocalApi(reads={"state": lambda _: {}}, writes={"retry": no_such_pod}, owner=os.geteuid(), group=None)
    server = thread.serve(listen(UnixAddress(str(directory / "agent.sock"))), api)
    try:
        return call(str(directory / "agent.sock"), op, pod="web")
    finally:
        server.close()
        thread.stop()


def pushed(path: Path) -> object:
    """Ask a container runtime what runs."""
    with Push(path, lambda _: (), index=91) as push:
        return push.sent(30)


def grpc(kind: GrpcServerKind, path: Path) -> GrpcClient:
    return GrpcClient(kind, path, time.monotonic() + 60, 4096)


def registration_refused(message: bytes) -> bytes:
    status = b"\x08\x02\x12" + bytes([len(message)]) + message
    return mux_frame(2, ttrpc_frame(1, 2, b"\x0a" + bytes([len(status)]) + status))


def refused_call(directory: Path, payload: bytes) -> str:
    """Have a runtime ask something that can't be understood; what it is told."""
    runtime = Runtime(directory / "s")
    try:
        with Push(runtime.path, lambda _: (), index=91):
            connection = runtime.accept_plugin()
            asked = connection.ask("Synchronize", payload)
            with pytest.raises(Refused) as caught:
                connection.answer(asked, None)
        return caught.value.message
    finally:
        runtime.close()


async def no_such_pod(_: object) -> object:
    return find_pods(NodeState(EMPTY), "web")


def locked_twice(directory: Path) -> None:
    with state_files.lock_directory(str(directory)):
        state_files.lock_directory(str(directory))


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


def job_requests(directory: Path) -> JobRequests:
    """Nobody decides on them."""
    nobody: Any = None
    return JobRequests(jobs_in(directory), nobody)


def jobs_in(directory: Path) -> Jobs:
    reservations = Reservations(str(directory), lambda: None, make_log())
    return Jobs(PlacementFiles(f"{directory}/jobs"), reservations, lambda: None)


def reservation_requests(directory: Path) -> ReservationRequests:
    """Nobody decides on them."""
    jobs, nobody = jobs_in(directory), cast("Any", None)
    return ReservationRequests(jobs.reservations, JobRequests(jobs, nobody), JobQueue(jobs, nobody))


def config_file(directory: Path, text: str = "") -> str:
    path = directory / "config.yaml"
    path.write_text(f"stateDirectory: {directory / 'state'}\nruntimeDirectory: {directory / 'run'}\n{text}")
    return str(path)


def closed_socket() -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.close()
    return channel


def wanted(pod_name: str, container_name: str, directory: Path) -> Namespace:
    """What `nodeagent exec` was asked for, where there is neither an agent nor a configuration."""
    config, agent = str(directory / "none.yaml"), str(directory / "none.sock")
    return Namespace(pod=pod_name, container=container_name, config=config, socket=agent, argv=["--", "true"])


def onto_a_full_disk(*words: str) -> None:
    with Path("/dev/full").open("w") as full, redirect_stdout(full), program.flushing_output():
        topology.run(asked(topology, *words))


def about(**options: Any) -> Namespace:
    """Which node is meant, where nothing else was said."""
    return Namespace(**({"config": None, "socket": None, "root": None, "machine": None} | options))


def asked(command: ModuleType, *words: str) -> Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def pinned_without_a_unit(directory: Path) -> None:
    systemctl = written(
        directory / "systemctl",
        "#!/bin/sh\ncase $* in *show*) echo Id=web.service; echo LoadState=not-found;; *) echo webb.service;; esac\n",
    )
    systemctl.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "ENVIRONMENT", {"PATH": f"{directory}:/usr/bin:/bin"})
        pin.run(asked(pin, "web", "--cpus", "1", "--memory", "1Mi"))


def refused_job() -> None:
    with answer_jobs(lambda *_: {"refused": {"reason": "OutOfcpu", "message": "not enough"}}) as socket:
        job.run(asked(job, "--cpus", "1", "--memory", "1Mi", "--socket", socket, "--", "true"))


def with_histograms(directory: Path) -> Path:
    """Make it look like tracefs; the files of an instance are missing."""
    (directory / "instances").mkdir()
    (directory / "events/sched/sched_switch").mkdir(parents=True)
    (directory / "events/sched/sched_switch/hist").touch()
    return directory


def counted_in(tracefs: Path) -> None:
    with record(CpuSet.of(1), tracefs):
        pass


def explained(directory: Path, name: str, text: str = "") -> object:
    """Ask why a pod of a described machine was admitted, which has none."""
    return explain.run(asked(explain, name, "--topology", "4c", "--config", config_file(directory, text)))


def compared(directory: Path) -> object:
    """Compare two configurations on a machine without pods."""
    path = config_file(directory)
    return simulate.run(asked(simulate, "--compare", path, path, "--topology", "4c"))


def with_manifests(command: ModuleType, directory: Path, *words: str) -> object:
    """Have manifests put in place or taken away where no agent runs, and none is in place."""
    (directory / "m").mkdir(exist_ok=True)
    config = config_file(directory, f"manifestDirectory: {directory}/m\n")
    return command.run(asked(command, *words, "--config", config, "--socket", f"{directory}/s"))


def without_ssh(directory: Path) -> object:
    """Ask a host where no program can be found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(directory))
        return run_on_host("node07", "true", within_seconds=1, max_bytes=1)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


HUGE = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "9999"}}}]}}'
DESCRIBED = '{"topology": {"cpus": [{"id": 0, "core": 0, "socket": 0, "numa": 0}]}}'
EMPTY = core.initial(World().managers)
SPLIT_CORE = {"topology": {"cpus": [{"id": c, "core": 0, "socket": c, "numa": 0} for c in (0, 1)]}}
FEW_DISTANCES = {
    "topology": {"cpus": [{"id": c, "core": c, "socket": 0, "numa": c} for c in (0, 1)]},
    "numa": [{"id": 0, "memory": 1, "distances": [10]}],
}
CASES = [
    Case("ApiError", "unknown operation", lambda d: ask_an_agent(d, "dance"), "'dance'"),
    Case("ApiError", "an error of an operation", lambda d: ask_an_agent(d, "retry"), "'web'"),
    Case("ApiError", "no agent", lambda d: call(listener_that_says(b"hello\n", d / "s"), "state"), "{}/s"),
    Case("ApiUnavailable", "no socket", lambda d: call(str(d / "s"), "state"), "{}/s"),
    Case("ApiUnavailable", "no listener", lambda d: call(str(socket_file(d / "s")), "state"), "{}/s"),
    Case("ApiUnavailable", "half an answer", lambda d: call(listener_that_says(b"{", d / "s"), "state"), "{}/s"),
    Case("PodRefusedError", "a pod that asks for too much", lambda d: with_manifests(apply, d, str(written(d / "a.yaml", HUGE))), "default/a would be refused"),
    Case("CaptureError", "no JSON", lambda d: read_topology(about(machine=str(written(d / "f", "{")))), "{}/f is not a capture of a node: it is not JSON"),
    Case("CaptureError", "no machine", lambda d: read_topology(about(machine=str(written(d / "f", "{}")))), "it is neither a capture (kind: NodeCapture) nor a description of a machine: topology: is missing"),
    Case("CaptureError", "of a later version", lambda d: read_topology(about(machine=str(written(d / "f", '{"kind": "NodeCapture", "version": 99}')))), "version 99"),
    Case("CgroupEntryError", "no cgroup", lambda d: enter_cgroup(str(d / "gone")), "{}/gone"),
    Case("CgroupError", "weight", lambda d: cgroup_with(d, "cpu.weight", "heavy").read(frozenset()), "'heavy'"),
    Case("CgroupError", "effective CPUs", lambda d: cgroup_with(d, "cpuset.cpus.effective", "a-b").read(frozenset()), "{}/cpuset.cpus.effective"),
    Case("CgroupError", "events", lambda d: cgroup_with(d, "cgroup.events", "populated yes").read(frozenset()), "{}/cgroup.events"),
    Case("CgroupError", "a directory", lambda d: CgroupTree(f"{d}/{'x' * 300}").read(frozenset()), "{}/xxx"),
    Case("MemoryInUseError", "more than the limit", lambda d: cgroup_with(d, "memory.current", "8192").apply(SetAttribute("", Attribute.MEMORY_MAX, ByteLimit(4096), None)), "{}/memory.max"),
    Case("CheckpointError", "no checkpoint", lambda d: checkpoint.run(asked(checkpoint, "verify", str(written(d / "f", "{}")))), "{}/f: defaultCpuSet, machineState, PodDeviceEntries"),
    Case("CheckpointError", "no file", lambda d: checkpoint.run(asked(checkpoint, "verify", f"{d}/none")), "{}/none"),
    Case("CommandError", "no such command", lambda _: exec_command.run_command(["/nowhere/cmd"]), "'/nowhere/cmd'"),
    Case("CommandError", "no command", lambda d: exec_command.run_command([str(d)]), "'{}'"),
    Case("DocumentError", "configuration", lambda _: parse_config(b"maxPods: -1", "/etc/x.yaml"), "/etc/x.yaml:1: maxPods: -1"),
    Case("DocumentError", "no YAML", lambda _: parse_config(b"a: [", "/etc/x.yaml"), "/etc/x.yaml:1"),
    Case("ExecError", "no agent, no configuration", lambda d: exec_command.run(wanted("web", "app", d)), "{}/none.yaml" if os.geteuid() == 0 else "only root"),
    Case("ExplainError", "a pod of an empty machine", lambda d: explained(d, "web"), "'web'"),
    Case("InterferenceError", "a pod that shares", lambda _: interference.find_exclusive_cpus(World().add(pod("web")).view(), "web"), "default/web"),
    Case("IrqbalanceError", "something else there", lambda d: irqbalance.read(Path(listener_that_says(b"hello", d / "irqbalance1.sock")).parent), "'hello'"),
    Case("IrqbalanceError", "too long a list", lambda d: irqbalance.ban(CpuSet.from_ids(range(0, 999, 2)), d), "0,2,4"),
    Case("NoCpusError", "one of several containers", lambda _: cpus.find_container(World().add(pod("web", app("a"), app("b"))).state.entries[0], None), "default/web"),
    Case("EntryError", "no such container", lambda _: check_container(World().add(pod("web")).state.entries[0], "ap"), "'ap'"),
    Case("JobError", "no agent", lambda d: job.run(asked(job, "--cpus", "1", "--memory", "1Mi", "--socket", f"{d}/s", "--", "true")), "{}/s"),
    Case("JobRefusedError", "no room", lambda _: refused_job(), "OutOfcpu"),
    Case("UsageError", "an option of the wrong form", lambda d: job.run(asked(job, "--cpus", "1", "--memory", "1Mi", "--near", "a/b", "--socket", f"{d}/s", "--", "true")), "a/b"),
    Case("PodOptionError", "an amount of 0", lambda _: job_pod("one", "one", {"cpu": "0"}), "--cpus 0 must be above 0"),
    Case("JobError", "another user", lambda _: job.run(asked(job, "--cpus", "1", "--memory", "1Mi", "--user", "no one", "--", "true")), "'no one'" if os.geteuid() == 0 else "only root"),
    Case("SwitchUserError", "no such group", lambda _: become_user(struct_passwd(("none", "x", 65534, -1, "", "/", "/bin/sh")), {}, inherits=True), "'none'"),
    Case("JobNotKeptError", "too early", lambda d: jobs_in(d).ask(pod("web"), 0, open_caller(os.getpid(), os.getuid())), "starting"),
    Case("JobRequestError", "nothing asked", lambda d: asyncio.run(job_requests(d).answer({}, Peer(0, frozenset()))), "name: is missing"),
    Case("ReservationError", "nothing asked", lambda d: asyncio.run(reservation_requests(d).answer({}, Peer(0, frozenset()))), "name: is missing"),
    Case("ReserveError", "nobody of this name", lambda _: find_user("nobody of this name"), "nobody of this name"),
    Case("LatencyToolError", "not installed", lambda d: check_installed([f"{d}/oslat"]), "{}/oslat"),
    Case("ProbeError", "a file of something else", lambda d: ((d / "f").write_text("{}"), probe.read_earlier(NamedFile(f"{d}/f"))), "{}/f"),
    Case("ReportError", "a file of something else", lambda d: ((d / "f").write_text("{}"), report.read_file(NamedFile(f"{d}/f"))), "{}/f"),
    Case("LauncherError", "no launcher", lambda d: LauncherClient(d / "s").hello(), "{}/s"),
    Case("LauncherProtocolError", "no JSON", lambda _: decode_hello(b"Hello!"), "Hello!"),
    Case("LauncherProtocolError", "another version", lambda _: decode_hello(b'{"hello": {"version": 3}}'), "hello.version: must be a string, not 3"),
    Case("ListenError", "no directory", lambda d: listen(UnixAddress(f"{d}/none/s")), "{}/none/s"),
    Case("ListenError", "a file in its place", lambda d: ((d / "s").write_text(""), listen(UnixAddress(f"{d}/s"))), "{}/s"),
    Case("CgroupWatchError", "no file descriptor left", lambda d: watch_without_file_descriptors(CgroupWatch(str(d), lambda: None)), "{}"),
    Case("ManifestDirectoryError", "none", lambda d: scan_manifests(f"{d}/none"), "{}/none"),
    Case("ManifestDirectoryError", "too long", lambda d: scan_manifests(f"{d}/{'x' * 300}"), "{}/xxx"),
    Case("ManifestLockError", "a directory in its place", lambda d: ((d / "m/.lock").mkdir(parents=True), with_manifests(delete, d, "web")), "{}/m/.lock"),
    Case("ManifestPlaceError", "no such pod", lambda d: with_manifests(delete, d, "web"), "'web'"),
    Case("ManifestWatchError", "no file descriptor left", lambda d: watch_without_file_descriptors(ManifestWatch(str(d), lambda: None)), "{}"),
    Case("HostFileError", "no list of CPUs", lambda _: read_value(Setting(SettingKind.IRQ, "24"), "all\n"), "/proc/irq/24/smp_affinity_list"),
    Case("HostRecordError", "no record", lambda _: decode_record(b"nonsense\n"), "it is not JSON"),
    Case("KernelThreadsError", "no directory of processes", lambda d: kernel_threads.KernelThreads(f"{d}/none").find(), "{}/none"),
    Case("NodeStateError", "no state", lambda _: decode_state(b"nonsense\n"), "header: it is not JSON"),
    Case("NotifyError", "no address", lambda _: ServiceManager({"NOTIFY_SOCKET": "run/x"}), "'run/x'"),
    Case("NotifyError", "nobody listens", lambda d: ServiceManager({"NOTIFY_SOCKET": f"{d}/s"}).notify_ready(""), "{}/s"),
    Case("NotifyError", "no number", lambda _: ServiceManager({"WATCHDOG_USEC": "soon"}), "'soon'"),
    Case("GrpcError", "no kubelet", lambda d: grpc(KUBELET, d / "s").__enter__(), "{}/s: there is no such socket"),
    Case("GrpcError", "something else for a kubelet", lambda d: grpc(KUBELET, Path(listener_that_says(b"HTTP/1.1 400 Bad", d / "s"))).__enter__().call("/x", b""), "{}/s: it violates the gRPC protocol"),
    Case("GrpcError", "no device plugin", lambda d: grpc(DEVICE_PLUGIN, d / "s").__enter__(), "{}/s: there is no such socket"),
    Case("GrpcError", "something else for a device plugin", lambda d: grpc(DEVICE_PLUGIN, Path(listener_that_says(b"HTTP/1.1 400 Bad", d / "s"))).__enter__().call("/x", b""), "{}/s: it violates the gRPC protocol"),
    Case("NriError", "no runtime", lambda d: pushed(d / "s"), "{}/s: No such file"),
    Case("NriError", "no listener", lambda d: pushed(socket_file(d / "s")), "{}/s: Connection refused"),
    Case("NriError", "half an answer", lambda d: pushed(Path(listener_that_says(b"\0\0\0\2", d / "s"))), "{}/s: it closed the connection"),
    Case("NriError", "something else there", lambda d: pushed(Path(listener_that_says(b"HTTP/1.1 400 Bad", d / "s"))), "more than the limit of 4194314"),
    Case("NriError", "a refusal", lambda d: pushed(Path(listener_that_says(registration_refused(b"disabled"), d / "s"))), "it refuses the plugin: disabled (2)"),
    Case("NriError", "a damaged refusal", lambda d: pushed(Path(listener_that_says(registration_refused(b"\xff"), d / "s"))), "a string is not UTF-8"),
    Case("NeverSavedError", "no state", lambda d: read_this_node(config_file(d), f"{d}/s"), "{}/state/nodeagent_state"),
    Case("InvalidConfigError", "a wrong field", lambda d: config.run(asked(config, "validate", "--alone", config_file(d, "maxPods: many"))), '"many"'),
    Case("NothingComparedError", "no cgroups", lambda d: inspect.check_compared({"differences": None, "node": {"cgroupRoot": f"{d}/pods", "copied": False}}), "{}/pods"),
    Case("OutputError", "a full disk", lambda _: onto_a_full_disk("--topology", "2s.2c"), "No space left on device"),
    Case("OwnerError", "no such process", lambda _: open_caller(2**22 + 1, 0), str(2**22 + 1)),
    Case("OwnerError", "another user's", lambda _: open_caller(os.getpid(), os.getuid() + 1), str(os.getpid())),
    Case("PlacementFileError", "no runtime directory", lambda d: PlacementFiles(f"{d}/none/placement").write("uid/app", b""), "{}/none/placement/uid/app"),
    Case("PlacementFileError", "a file in its place", lambda d: PlacementFiles(str(written(d / "f", ""))).read(), "{}/f"),
    Case("PodFileError", "no manifest", lambda d: read_pods([NamedFile(str(d))]), "{} contains no manifest"),
    Case("PodFileError", "nothing there", lambda d: read_pods([NamedFile(f"{d}/none.yaml")]), "cannot read {}/none.yaml: No such file"),
    Case("PodFileError", "a file without pods", lambda d: read_pods([NamedFile(str(written(d / "f", "apiVersion: v1\nkind: List\nitems: []")))]), "no pod in {}/f"),
    Case("PodFileError", "a FIFO", lambda d: (fifo(d / "f.yaml"), read_pods([NamedFile(str(d))])), "{}/f.yaml is a FIFO"),
    Case("PinError", "no such unit", pinned_without_a_unit, "there is no unit web.service, did you mean webb?"),
    Case("UnpinError", "one that isn't pinned", lambda d: with_manifests(unpin, d, "db"), "unit db.service"),
    Case("DrainError", "no launcher", drain_without_launcher, "{}/pods"),
    Case("ReleaseError", "a pod without an agent", release_one_without_agent, "only the agent can release single pods"),
    Case("WaitError", "an agent that has gone", lambda d: wait_for_agent(Namespace(timeout=0), ManifestPlace(str(d), {}, f"{d}/s", is_live=True), (), bool), "{}/s"),
    Case("AgentAwayError", "no agent", lambda d: with_manifests(delete, d, "web", "--wait"), "so --wait would never end"),
    Case("WatchError", "no terminal", lambda _: watch(Namespace(frames=None)), "needs a terminal"),
    Case("RetryError", "no agent", lambda d: retry.run(asked(retry, "web", "--socket", f"{d}/s")), "{}/s"),
    Case("ScenarioError", "no JSON", lambda _: scenario_from_text("{", "f:7"), "f:7"),
    Case("ScenarioError", "an operation", lambda _: scenario_from_text('{"topology": {"cpus": []}, "steps": [{"op": "jump"}]}', "f:7"), '"jump"'),
    Case("ScenarioError", "no container", lambda _: scenario_from_text('{"topology": {"cpus": []}, "steps": [{"op": "removeContainer"}]}', "f:7"), "steps[0].container"),
    Case("ScenarioError", "its configuration", lambda _: scenario_from_text('{"topology": {"cpus": []}, "config": {"cpuManagerPolcy": "x"}}', "f:7"), "f:7: config: cpuManagerPolcy"),
    Case("ScenarioError", "its machine", lambda _: scenario_from_text('{"topology": {"cpus": [{"id": "a"}]}}', "f:7"), '"a"'),
    Case("ScenarioError", "a core in two sockets", lambda _: scenario_from_text(json.dumps(SPLIT_CORE), "f:7"), "core 0 (CPUs 0-1)"),
    Case("ScenarioError", "distances to some nodes", lambda _: scenario_from_text(json.dumps(FEW_DISTANCES), "f:7"), "[10]"),
    Case("SealError", "something else", lambda _: unseal(b'{"format": "x", "version": 1, "sha256": ""}\n', "y", 1, "see `nodeagent check`"), "'x'"),
    Case("SourceError", "no file", lambda d: read_topology(about(machine=f"{d}/none")), "{}/none"),
    Case("SourceError", "no configuration", lambda d: read_node(about(machine=str(written(d / "f", DESCRIBED)))), "{}/f"),
    Case("SimulateError", "no pod", compared, "no pod to decide on"),
    Case("SimulateInputError", "no file", lambda d: simulate.run(asked(simulate, f"{d}/none")), "{}/none"),
    Case("SimulateInputError", "no lines", lambda _: simulate.run(asked(simulate, "/dev/zero")), "/dev/zero: line 1 has more than"),
    Case("StartError", "no configuration", lambda d: load_config(f"{d}/none"), "{}/none"),
    Case("StartError", "a wrong one", lambda d: load_config(config_file(d, "maxPods: many")), '"many"'),
    Case("StartError", "a directory in its place", lambda d: load_config(str(d)), "{}"),
    Case("SshError", "no ssh", without_ssh, "node07: cannot run ssh: No such file or directory"),
    Case("StateFileError", "a directory in its place", lambda d: state_files.read(str(d), max_bytes=9), "{}"),
    Case("StateFileError", "too large", lambda d: ((d / "f").write_text("0123456789"), state_files.read(f"{d}/f", max_bytes=9)), "{}/f"),
    Case("StateFileError", "a FIFO in its place", lambda d: state_files.read(fifo(d / "f"), max_bytes=9), "{}/f"),
    Case("StateFileError", "no directory", lambda d: state_files.write_atomically(f"{d}/none/f", b""), "{}/none"),
    Case("StateFileError", "a FIFO where a file is to be written", lambda d: documents.write_out(fifo(d / "f"), b""), "{}/f"),
    Case("StateFileError", "a file where none may be replaced", lambda d: ((d / "f").touch(), documents.write_out(f"{d}/f", b"", replaces=False)), "{}/f"),
    Case("StateFileError", "in use", locked_twice, f"pid {os.getpid()}"),
    Case("SysfsError", "a setting", lambda d: write_setting("proc/sys/none", "0", str(d)), "{}/proc/sys/none"),
    Case("SysfsError", "malformed", lambda d: topology_of(read_machine(malformed_machine(d))), '"zero"'),
    Case("SysfsError", "no machine", lambda d: topology_of(read_machine(str(d))), "{}"),
    Case("TopologyDocumentError", "a field", lambda _: topology_from_document({"topology": {"cpus": "many"}}), "topology.cpus"),
    Case("TopologySpecError", "no machine", lambda _: topology_from_spec("2x"), '"2x"'),
    Case("WhatIfError", "a configuration that does not suit", lambda d: explained(d, "web", "reservedSystemCPUs: '99'"), "99 is not a subset"),
    Case("UeventError", "the socket broke", lambda _: uevents.drain(closed_socket()), "Bad file descriptor"),
    Case("TracefsError", "no tracefs", counted_in, "{}"),
    Case("TracefsError", "a kernel without histograms", lambda d: ((d / "instances").mkdir(), counted_in(d)), "{}/events/sched/sched_switch"),
    Case("TracefsError", "an instance that lacks something", lambda d: counted_in(with_histograms(d)), "{}/instances/nodeagent-"),
    Case("UnitsError", "no cgroups", lambda d: units.read_units(CpuSet.of(0), cgroups=d / "none"), "{}/none"),
    Case("UnitsError", "no systemd", lambda d: units.set_allowed_cpus("a.slice", CpuSet.of(1), f"{d}/systemctl"), "AllowedCPUs=1 of a.slice: cannot run {}/systemctl"),
    Case("UnitsError", "a refusal", lambda _: units.set_allowed_cpus("a.slice", CpuSet.of(1), "false"), "AllowedCPUs=1 of a.slice: systemctl has exited with status 1"),
    Case("UnknownPodError", "none", lambda _: find_pods(NodeState(EMPTY), "wbe"), "'wbe'"),
    Case("UnknownStateError", "damaged", lambda d: ((d / "state").mkdir(), written(d / "state/nodeagent_state", "{"), read_this_node(config_file(d), f"{d}/s")), "{}/state/nodeagent_state"),
    Case("VanishedError", "a file that can't be opened", lambda d: read_machine(machine_without_a_core_id(d)), "{}/sys/devices/system/cpu/cpu0/topology/core_id"),
]  # fmt: skip


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_every_error_class_is_provoked() -> None:
    assert {case.kind for case in CASES} == {kind.__name__ for kind in error_classes()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.name}")
def test_an_error_names_its_value_and_the_next_step(case: Case, place: Path) -> None:
    with pytest.raises(NodeAgentError) as caught:
        case.provoke(place)
    error = caught.value
    assert type(error).__name__ == case.kind
    assert case.named.replace("{}", str(place)) in error.message
    assert error.message == error.message.strip()
    assert STEP.search(error.hint), error.hint


def test_every_next_step_of_the_page_of_errors_names_something_to_type_open_or_set() -> None:
    page = errors().partition("## Configuration, machine and state")[0].replace("\\", "")
    rows = [row[2:].partition(" | ") for row in page.splitlines() if row.startswith("| ")]
    steps = [step for _, _, step in rows if step not in {"next step |", "--- |", "(by case) |"}]
    assert len(steps) > 60
    assert [step for step in steps if not STEP.search(step)] == []


# Errors that stay inside: a caller makes one of those above of each, or a finding, or a refused start.


def start_with(cpu: str = "", memory: str = "") -> str:
    """Start from kubelet's own files; the refusal's text."""
    node = World().managers
    refused = start(
        node,
        Records(
            cpu=decode_cpu_state(cpu, pod_level=False, initial={}, newer=True) if cpu else None,
            memory=decode_memory_state(memory, pod_level=False, newer=True) if memory else None,
        ),
    )
    assert isinstance(refused, StartRefused)
    return f"{refused.message}; {refused.about}"


def message_of(provoke: Callable[[], object]) -> str:
    with pytest.raises(NodeAgentError) as caught:
        provoke()
    assert STEP.search(caught.value.hint)
    return caught.value.message


def config_message(text: str) -> str:
    return message_of(lambda: parse_config(text.encode(), "f"))


def of_kubelet(directory: Path, pod: bytes) -> str:
    """Return the problem that a pod of kubelet's leaves."""
    log: Any = SimpleNamespace(warning=lambda *_, **__: None)
    pods = PodsApi(directory / "s", log, is_expected=True)
    with serving(directory / "s") as kubelet:
        kubelet.raw = pod
        pods.ask_unknown(["uid"], time.monotonic() + 60)
    return pods.problem


def status_of(message: bytes) -> str:
    """Return what a client is told that asks PodResources for a pod."""
    client, server = H2Connection(H2Configuration(header_encoding="utf-8")), GrpcConnection(POD_RESOURCES, print)
    client.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/v1.PodResourcesLister/Get")]
    client.send_headers(1, [*pseudo, ("content-type", "application/grpc")])
    client.send_data(1, add_frame(message), end_stream=True)
    server.receive(client.data_to_send())
    (answer,) = (one for one in client.receive_data(server.take_output()) if isinstance(one, ResponseReceived))
    assert answer.headers is not None
    return str(dict(answer.headers)["grpc-message"])


SCENARIO = json.dumps(
    {"topology": {"cpus": [{"id": 0, "core": 0, "socket": 0, "numa": 0}]}, "config": {"cpuManagerPolicy": "fast"}}
)


def of_containerd(root: Path, text: str) -> str:
    """Return what `check` says of containerd's configuration."""
    path = root / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return runtime_facts("/run/nri.sock", root, is_elsewhere=True).config_problem


def refused_for_a_plugin() -> str:
    """Return what a pod is told that a CPU plugin has no answer about."""
    refusal = refused_by_managers(WITHOUT_PLUGIN, big("2")).state.entries[0].refusal
    assert refusal is not None
    return refusal.message


def refused_claim(wanted: ClaimRequest) -> str:
    """Return what a pod with one CPU is told of its claim."""
    world = World(placement=STATIC)
    world.managers = world.managers.knowing(PlacedDevices())
    refusal = world.add(claiming("big", "1", template(wanted))).state.entries[0].refusal
    assert refusal is not None
    return refusal.message


class Unanswering:
    """A device plugin that has no answer."""

    def __init__(self, error: DevicePluginFailedError) -> None:
        self._error = error

    def describe_wait(self, _pod_uid: str) -> str:
        return ""

    def preferred(
        self, _pod_uid: str, _available: tuple[str, ...], _must: tuple[str, ...], _size: int
    ) -> tuple[str, ...]:
        return ()

    def allocate(self, _pod_uid: str, ids: tuple[str, ...]) -> bytes:
        assert ids == ("a",)
        raise self._error


def refused_for_a_device_plugin(error: DevicePluginFailedError) -> str:
    made = managers().knowing(None, (DevicePool("x.com/gpu", (PoolDevice("a"),), Unanswering(error)),))
    decision = admit(made, initial(made), pod("p", app(devices={"x.com/gpu": 1})))
    assert isinstance(decision, Rejected)
    return decision.message


def damaged_devices(directory: Path, content: str = '{"Checksum":1}') -> str:
    (directory / "kubelet_internal_checkpoint").write_text(content)
    problems: list[str] = []
    assert read_recorded_devices(directory, problems, []) == {}
    return problems[0]


INSIDE: dict[str, tuple[Callable[[Path], str], str]] = {
    "ApiSyntaxError": (lambda d: message_of(lambda: call(listener_that_says(b"[]\n", d / "s"), "state")), "not a JSON object"),
    "BindAddressError": (lambda _: config_message("metricsBindAddress: 'here'"), "'here'"),
    "CallError": (lambda _: status_of(b"\x0a\x03web"), "pod web in namespace"),
    "CgroupValueError": (lambda d: message_of(lambda: cgroup_with(d, "memory.max", "-1").read(frozenset())), "'-1'"),
    "ContainerdConfigError": (lambda d: of_containerd(d, "disable ="), "/etc/containerd/config.toml: "),
    "DeviceCheckpointError": (damaged_devices, "kubelet_internal_checkpoint: checkpoint is corrupted"),
    "DevicePluginFailedError": (lambda _: refused_for_a_device_plugin(DevicePluginFailedError("it is gone")), "it is gone"),
    "DevicePluginPostponedError": (lambda _: refused_for_a_device_plugin(DevicePluginPostponedError("it is slow")), "it is slow"),
    "DurationSyntaxError": (lambda _: config_message("cpuManagerReconcilePeriod: 5x"), '"5x"'),
    "GoJsonError": (lambda _: start_with(cpu='{"policyName": 3}'), "number into Go value of type string"),
    "HistogramSyntaxError": (lambda _: message_of(lambda: decode_counts(kernel_histograms.record(b"x", began_ns=0, ended_ns=1), CpuSet.of(1))), "sched_switch"),
    "IdSetSyntaxError": (lambda _: config_message("reservedSystemCPUs: 3-1"), '"3-1"'),
    "IrqbalanceSyntaxError": (lambda d: message_of(lambda: irqbalance.read(Path(listener_that_says(b"hello", d / "irqbalance1.sock")).parent)), "'hello'"),
    "KubeletPodError": (lambda d: of_kubelet(d, b"nonsense"), "proto3 has no wire type 6"),
    "LatencyReportError": (lambda _: message_of(lambda: probe.parse_report(parse_oslat, b"{}", CpuSet.of(1), "oslat")), "thread: is missing"),
    "NoWayError": (lambda _: refused_claim(request("cpus", count=99)), "99 wanted, 7 devices meet its selectors"),
    "OldFormatError": (lambda d: damaged_devices(d, '{"PodDeviceEntries":[]}'), "before 1.11"),
    "SelectorError": (lambda _: refused_claim(request("cpus", "dra.cpu", "device.driver")), "must be true or false"),
    "_MisfitError": (lambda _: refused_claim(request("cpus", count=2)), "its claims have 2 CPUs"),
    "MisfitError": (lambda _: message_of(lambda: decode_state(b'{"format": 3}\n')), "format"),
    "MuxError": (lambda d: message_of(lambda: pushed(Path(listener_that_says(b"HTTP/1.1 400 Bad", d / "s")))), "more than the limit of 4194314"),
    "NriPayloadError": (lambda d: refused_call(d, b"\x0a\x00"), "PodSandbox.id is missing, so the call is about no pod"),
    "PluginFailedError": (lambda _: refused_for_a_plugin(), "CPU plugin elsewhere: it is not installed here"),
    "ProtobufError": (lambda d: refused_call(d, b"\x0a\x7f"), "field 1 ends 127 bytes beyond the message"),
    "ResourceFailedError": (lambda _: refused_for_a_plugin(), "it is not installed here"),
    "QuantitySyntaxError": (lambda _: config_message("kubeReserved: {cpu: much}"), '"much"'),
    "ScalarError": (lambda _: config_message("maxPods: .nan"), ".nan"),
    "TtrpcError": (lambda d: message_of(lambda: pushed(Path(listener_that_says(registration_refused(b"\xff"), d / "s")))), "a string is not UTF-8"),
    "UnreadableError": (lambda _: config_message("maxPods: ["), "f:1: is not valid YAML"),
    "_StartRefusedError": (lambda _: replay(scenario_from_text(SCENARIO, "f"))["startError"], '"fast"'),
}  # fmt: skip


def test_every_error_that_stays_inside_has_a_way_out() -> None:
    assert list(modules())
    inside = {c.__name__ for c in subclasses(Exception) if c.__module__.startswith("nodeagent.")}
    inside -= {kind.__name__ for kind in error_classes()} | {"NodeAgentError"}
    assert inside == {*INSIDE, "RefusedError"}, "RefusedError is the launcher's: see below"


@pytest.mark.parametrize("name", INSIDE)
def test_an_error_that_stays_inside_shows_its_value_outside(name: str, place: Path) -> None:
    provoke, named = INSIDE[name]
    assert named in provoke(place)


# The launcher's refusals, as far as the agent's client can come by them (by hand: tests/launcher/test_launcher_life.py)


def asked_while_stopping(launcher: LauncherProcess) -> object:
    """It is told to stop, and waits for a process that takes its time."""
    launcher.start("slow", "sh", "-c", "trap '' TERM; echo ready; exec sleep 30", grace_seconds=20)
    wait_for(lambda: launcher.output.exists() and "ready" in launcher.output.read_text(), "it ignores SIGTERM")
    assert launcher.process is not None
    launcher.process.terminate()

    def refused() -> bool:
        try:
            launcher.start("late", "true")
        except LauncherError as err:
            return "unavailable" in err.message
        wait_for(lambda: launcher.end_of("late"), "it ends")
        launcher.client.ack(["late"])
        return False

    wait_for(refused, "it stops")
    return launcher.start("later", "true")


LAUNCHER: list[tuple[str, Callable[[LauncherProcess], object], str]] = [
    ("bad_request", lambda x: x.start("no blanks", "true"), "id"),
    ("bad_request", lambda x: x.start("x", "true", groups=3, env=(("A", 1),)), "env"),
    ("bad_request", lambda x: x.client.signal("x", 1000), "1000"),
    ("outside_cgroup", lambda x: x.start("x", "true", cgroup="/sys/fs/cgroup/other"), "/sys/fs/cgroup/other"),
    ("unavailable", asked_while_stopping, "stopping"),
    ("unknown_id", lambda x: x.client.signal("nobody", 15), "'nobody'"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "provoke", "named"), LAUNCHER, ids=[f"{row[0]}: {row[2]}" for row in LAUNCHER])
def test_a_refusal_of_the_launcher(
    code: str, provoke: Callable[[LauncherProcess], object], named: str, launcher: LauncherProcess
) -> None:
    with pytest.raises(LauncherError) as caught:
        provoke(launcher)
    assert f"({code})" in caught.value.message
    assert named in caught.value.message
    assert STEP.search(caught.value.hint)


# Refused pods


def refused_by_managers(placement: Placement, new: Pod) -> World:
    world = World(placement=placement).add(new)
    assert world.state.entries[0].refusal is not None, "it was admitted"
    return world


def without_devices(new: Pod) -> World:
    world = World()
    world.managers = world.managers.knowing(PlacedDevices())
    return world.add(new)


def refused_by_the_node(new: Pod, **room: int) -> World:
    amounts = tuple(sorted((name.replace("_", "-"), amount) for name, amount in room.items() if name != "pods"))
    short = insufficient(new, usage_of(()), Allocatable(room.get("pods", 10), amounts))
    assert short is not None
    world = World().add(new)
    refused = replace(world.state.entries[0], refusal=Waiting(short.reason, short.message, NOW_MS), containers=())
    world.state = replace(world.state, promises=core.initial(world.managers), entries=(refused,))
    return world


class Strict:
    """A CPU plugin whose Allocate lets nobody have anything."""

    points = frozenset({"Allocate"})
    held_off = ""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        pass

    def ask(self, point: str, *_question: object) -> object:
        return f"it is strict: {point}"


STATIC = Placement("static", reserved_system_cpus=CpuSet.of(0))
WITHOUT_PLUGIN = replace(STATIC, cpu_plugins=(CpuPlugin("elsewhere"),))
ONE_NODE = replace(STATIC, topology_manager_policy="single-numa-node")
BY_POD = replace(STATIC, topology_manager_policy="best-effort", topology_manager_scope="pod", feature_gates=PLRM)
WHOLE_CORES = replace(STATIC, cpu_manager_policy_options=(("full-pcpus-only", "true"),))


def big(cpu: str = "1", **more: Any) -> Pod:
    return pod("big", app("app", cpu=cpu, memory="64Mi", **more))


def with_a_slow_plugin(resource: str, new: Pod) -> World:
    world = World()
    world.managers = world.managers.knowing(
        None, (DevicePool(resource, (PoolDevice("a"),), Unanswering(DevicePluginPostponedError("it is slow"))),)
    )
    return world.add(new)


REASONS: list[tuple[str, Callable[[], World], str]] = [
    ("TopologyAffinityError", lambda: refused_by_managers(ONE_NODE, big("6")), "Topology locality"),
    ("SMTAlignmentError", lambda: refused_by_managers(WHOLE_CORES, big("3")), "requested 3 cpus"),
    (
        "EmptyPodSharedPoolError",
        lambda: refused_by_managers(
            BY_POD,
            pod(
                "big",
                app("app", cpu="2", memory="64Mi"),
                app("rest"),
                resources=exclusive(cpu="2", memory="256Mi"),
            ),
        ),
        "no cpus for shared containers",
    ),
    ("UnexpectedAdmissionError", lambda: refused_by_managers(STATIC, big("8")), "requested=8, available=7"),
    ("CoreClassUnavailable", lambda: refused_by_managers(STATIC, replace(big("2"), core_class="efficiency")), "of one kind"),
    ("DeviceUnavailable", lambda: without_devices(big(near=("eth0",))), "but this machine has no devices"),
    (
        "ResourceClaimUnavailable",
        lambda: refused_by_managers(
            STATIC, replace(claiming("big", "1", template(request("cpus", count=9))), uid="uid-big")
        ),
        "9 wanted, 7 devices meet its selectors, 7 of them free",
    ),
    (
        "CPUPluginFailed",
        lambda: refused_by_managers(WITHOUT_PLUGIN, big("2")),
        "CPU plugin elsewhere: it is not installed here",
    ),
    (
        "CPUPluginRefused",
        lambda: refused_by_managers(replace(STATIC, cpu_plugins=(CpuPlugin("strict", code=Strict()),)), big("2")),
        ": it is strict: Allocate",
    ),
    (
        "DevicePluginsSlow",
        lambda: with_a_slow_plugin("example.com/gpu", big(devices={"example.com/gpu": 1})),
        "it is slow",
    ),
    ("OutOfcpu", lambda: refused_by_the_node(big("2"), cpu=1500), "requested: 2000, used: 0, capacity: 1500"),
    ("OutOfmemory", lambda: refused_by_the_node(big(), cpu=9000, memory=1), "requested: 67108864, used: 0, capacity: 1"),
    ("OutOfpods", lambda: refused_by_the_node(big(), pods=0), "requested: 1, used: 0, capacity: 0"),
    *(
        (
            f"OutOfhugepages-{size}",
            lambda size=size: refused_by_the_node(big(**{f"hugepages_{size}": size}), cpu=9000, memory=2**40),
            f"hugepages-{size}, requested: ",
        )
        for size in ("2Mi", "1Gi")
    ),
]  # fmt: skip


def test_every_reason_is_provoked_and_has_advice() -> None:
    provoked = [row[0] for row in REASONS]
    assert sorted(provoked) == sorted({*Reason, *CAPACITY_REASONS})
    elsewhere = {
        STATE_NOT_SAVED,
        RELEASED,
        *OF_RUNTIMES,
        *OF_RESIZES,
        UNIT_TAKEN,
        *OF_QUEUE,
        RESERVATION_OVER,
    }  # of a pod that runs (tests/core/turn/test_resizes.py), with a full disk (tests/daemon/test_full_disk.py), by hand (tests/cli/test_release.py), with others (tests/core/turn/test_unit_pods.py), with waiting jobs (tests/daemon/test_jobs.py)
    assert {*provoked, *elsewhere} >= ADVISED_REASONS


@pytest.mark.parametrize(("reason", "provoke", "named"), REASONS, ids=[row[0] for row in REASONS])
def test_a_refused_pod_shows_reason_value_and_next_step(reason: str, provoke: Callable[[], World], named: str) -> None:
    world = provoke()
    refusal = world.state.entries[0].refusal
    assert refusal is not None
    assert refusal.reason == reason
    shown = " ".join(render_in_full(inspect_node(world.view(), frozenset({"uid-big"}))).split())
    assert "default/big" in shown
    assert f"{reason}: " in shown
    assert named in shown
    step = advise_next_step(reason, "default/big", refusal.message)
    assert " ".join(step.split()) in shown
    assert step.endswith("then: nodeagent retry default/big")
    assert STEP.search(step.partition("; then:")[0]), step


# Refused starts


def built(topology: Topology = MACHINE_A, **fields: Any) -> StartRefused:
    given: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_cpu_milli": 1000} | fields
    refused = core.build(topology, Placement(**given))
    assert isinstance(refused, StartRefused), refused
    return refused


def reserving(*entries: tuple[int, dict[str, str]], node: str | None = None, **more: Any) -> dict[str, Any]:
    """Static memory policy with reserved memory per node, and what the node as a whole reserves."""
    limits = [(number, {name: Quantity.parse(text) for name, text in given.items()}) for number, given in entries]
    total = {} if node is None else {"memory": Quantity.parse(node)}
    return {
        "memory_manager_policy": "Static",
        "reserved_memory": tuple(ReservedMemory(number, Resources.of(given)) for number, given in limits),
        "memory_reservation": Resources.of(total),
        **more,
    }


def option(name: str, value: str = "true") -> tuple[tuple[str, str], ...]:
    return ((name, value),)


FAR = machine(nodes=1)
WITHOUT_DISTANCES = Topology.of(FAR.cpus, [NumaNode(0, 8 * GIB)])
MORE_SOCKETS_THAN_NODES = Topology.of([replace(cpu, socket=cpu.core % 2) for cpu in FAR.cpus], FAR.numa)
SMALL_NODES = machine(memory=GIB, hugepages={"hugepages-2Mi": GIB})

CONFIGURATIONS: list[tuple[dict[str, Any], str]] = [
    *START_REFUSALS,
    ({"topology": Topology.of([], [])}, "could not detect number of cpus"),
    (
        {"topology": MORE_SOCKETS_THAN_NODES, "cpu_manager_policy_options": option("align-by-socket"), "feature_gates": ALPHA},
        "number of sockets are more than number of NUMA",
    ),
    (
        {"topology": WITHOUT_DISTANCES, "topology_manager_policy": "restricted", "topology_manager_policy_options": option("prefer-closest-numa-nodes")},
        "error getting NUMA distances",
    ),
    (
        {"topology_manager_policy": "restricted", "topology_manager_policy_options": option("max-allowable-numa-nodes", "9" * 20)},
        "value out of range",
    ),
    ({"isolated_cpus": "only"}, "no CPU that isn't reserved is isolated"),
    (reserving((7, {"memory": "1Gi"}), node="1Gi"), "NUMA node 7 that does not exist"),
    (reserving((0, {"cpu": "1"})), 'the limit type "cpu" for NUMA node 0'),
    (reserving((0, {"memory": "0"})), 'may not be zero for NUMA node 0 and resource "memory"'),
    (reserving((0, {"memory": "1Gi"}), (0, {"memory": "1Gi"}), node="2Gi"), "duplicate value for NUMA node 0"),
    (reserving((0, {"memory": "1500m"}), node="1500m"), "could not covert"),
    (reserving((0, {"memory": "1Gi"}), node="1Gi", topology=SMALL_NODES), "NUMA node 0 has 1073741824 bytes of memory"),
]  # fmt: skip


def held(promised: PodPromises) -> PodMap[PodPromises]:
    nothing: PodMap[PodPromises] = PodMap()
    return nothing.put("u1", promised)


def with_files(
    cpu: CpuRecord | Unreadable | None = None,
    memory: MemoryRecord | Unreadable | None = None,
    errata: Errata = Errata.KUBELET_1_36,
) -> StartRefused:
    refused = start(AS_KUBELET if errata is Errata.KUBELET_1_36 else STATIC_MEMORY, Records(cpu, memory))
    assert isinstance(refused, StartRefused), refused
    return refused


def resumed(node: Managers, *books: CpuBooks | MemoryBooks, **changes: Any) -> StartRefused:
    refused = core.resume(node, replace(core.initial(node), **changes).having(*books))
    assert isinstance(refused, StartRefused), refused
    return refused


STATIC_MEMORY = managers(reserved_memory={0: "1Gi"})
AS_KUBELET = managers(reserved_memory={0: "1Gi"}, errata=Errata.KUBELET_1_36)
STRICT = managers(options=("strict-cpu-reservation",), errata=Errata.KUBELET_1_36)
BY_ITSELF = managers(gates=PLRM)
WHOLE = NOTHING.having(CpuHoldings(pod_cpus=CpuSet.parse("1-7,9-15")))
HELD = NOTHING.having(CpuHoldings(cpus=(("app", CpuSet.of(1, 9)),)))
HELD_MEMORY = NOTHING.having(MemoryHoldings(memory=(("app", (Block(NumaSet.of(0), "memory", GIB),)),)))


def without_reserved_cpus() -> StartRefused:
    left = (cpu for cpu in MACHINE_A.cpus if cpu.id not in (0, 8))
    topology = Topology.of(left, MACHINE_A.numa, offline=CpuSet.parse("0,8"))
    found = on_machine(Config(placement=Placement(cpu_manager_policy="static")), topology, CpuSet.parse("0,8"))
    assert isinstance(found, tuple), found
    (refused,) = found
    return refused


FILES: list[tuple[Callable[[], StartRefused], str]] = [
    (lambda: with_files(cpu=Unreadable("no good")), "no good"),
    (lambda: with_files(cpu=CpuRecord("none", "0-15")), 'differs from state checkpoint policy "none"'),
    (lambda: with_files(cpu=CpuRecord("static", "1-a")), 'could not parse default cpu set "1-a"'),
    (lambda: with_files(cpu=CpuRecord("static", "0", (("u1", (("app", "1-a"),)),))), 'could not parse cpuset "1-a" for container "app"'),
    (lambda: with_files(cpu=CpuRecord("static", "1-15")), 'not all reserved cpus: "0,8"'),
    (lambda: with_files(cpu=CpuRecord("static", "0-15", (("u1", (("app", "1,9"),)),))), 'pod: u1, container: app cpuset: "1,9" overlaps'),
    (lambda: with_files(cpu=CpuRecord("static", "0,5-15", (), (("u1", CpuSet.parse("1-3")), ("u2", CpuSet.parse("3-4")))), errata=Errata.FIXED), 'pod: u2 cpuset: "3-4" overlaps with "3" of other pods'),
    (lambda: with_files(memory=Unreadable("no good")), "no good"),
    (lambda: with_files(memory=MemoryRecord("None")), 'differs from state checkpoint policy "None"'),
    (lambda: resumed(AS_KUBELET, CpuBooks(CpuSet()), pods=held(HELD)), "default cpuset cannot be empty"),
    (lambda: resumed(AS_KUBELET, CpuBooks(CpuSet.parse("0-14"))), "doesn't match with CPUs in state \"0-14\""),
    (lambda: resumed(BY_ITSELF, CpuBooks(CpuSet.parse("0,8")), pods=held(WHOLE).put("u2", WHOLE)), 'pod: u2 cpuset: "1-7,9-15" overlaps with "1-7,9-15" of other pods'),
    (lambda: resumed(BY_ITSELF, pods=held(WHOLE)), 'pod: u1 cpuset: "1-7,9-15" overlaps with default cpuset "0-15"'),
    (lambda: resumed(STRICT, CpuBooks(CpuSet.parse("0-15"))), 'some of strictly reserved cpus: "0,8"'),
    (lambda: resumed(STATIC_MEMORY, MemoryBooks(), pods=held(HELD_MEMORY)), "machine state can not be empty"),
    (lambda: resumed(AS_KUBELET, pods=held(HELD_MEMORY)), "different from the real one"),
]  # fmt: skip


def is_field(name: str) -> bool:
    try:
        parse_config(f"{name}: [x]".encode(), "f")
    except DocumentError as err:
        return "unknown field" not in err.message
    return True


@pytest.mark.parametrize(("fields", "named"), CONFIGURATIONS, ids=[row[1][:60] for row in CONFIGURATIONS])
def test_a_configuration_that_is_refused_is_named_with_its_field(fields: dict[str, Any], named: str) -> None:
    refused = built(**fields)
    assert named in refused.message
    assert is_field(refused.about) or Path(refused.about).is_absolute()


@pytest.mark.parametrize(("provoke", "named"), FILES, ids=[row[1][:60] for row in FILES])
def test_a_state_that_is_refused_is_named_with_its_file(provoke: Callable[[], StartRefused], named: str) -> None:
    refused = provoke()
    assert named in refused.message
    assert refused.about in {"cpu_manager_state", "memory_manager_state"}


def test_reserved_cpus_that_leave_nothing_are_refused() -> None:
    gone = without_reserved_cpus()
    assert (gone.message, gone.about) == ("all reserved CPUs (0,8) are offline", "reservedSystemCPUs")
    everything = (Placement(reserved_system_cpus=MACHINE_A.online), Placement("static", reserved_cpu_milli=16_000))
    for found in (on_machine(Config(placement=placement), MACHINE_A) for placement in everything):
        assert isinstance(found, tuple), found
        assert all(is_field(refused.about) for refused in found)
