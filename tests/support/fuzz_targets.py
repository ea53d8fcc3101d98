"""Everything that reads what others wrote, as targets: bytes in, an answer out. A target raises only where a rule is broken."""

import asyncio
import errno
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import hpack
from msgspec import structs

from nodeagent.core.admission.records import Records, start
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.domains.runtime.pod_model import build_runtime_pod
from nodeagent.core.domains.runtime.registry import Registry, apply_event
from nodeagent.core.domains.runtime.stated_pod import StatedPod, add_kubelet_data
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.model.nri import Call, Sandbox, Synchronized
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState, Origin
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.daemon.plugins.device_plugins import DEVICE_PLUGIN
from nodeagent.daemon.reports.pod_resources import PodResources
from nodeagent.daemon.start.node_builder import find_unsuited
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.edge.kernel.uevents import drain
from nodeagent.edge.observability.metrics_http import MetricsPages
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcError
from nodeagent.edge.transport.grpc_server import GrpcConnection
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.checkpoint_versions import (
    WRITABLE,
    CheckpointError,
    checkpoint_document,
    convert_checkpoint,
    read_checkpoint,
)
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state, read_cpu_contents
from nodeagent.formats.checkpoint.job_record import JobRecord, format_record, parse_record
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state, read_memory_contents
from nodeagent.formats.checkpoint.node_state import FORMAT, VERSION, NodeStateError, decode_state, encode_state
from nodeagent.formats.checkpoint.sealed import seal
from nodeagent.formats.config.config_yaml import judge_config, parse_config
from nodeagent.formats.config.containerd_config import ContainerdConfigError, read_imports, read_nri_config
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.config.kubelet_beside import KubeletFiles, find_kubelet_conflicts
from nodeagent.formats.kernel.cgroup_values import CgroupValueError, parse_flat_keyed, parse_value
from nodeagent.formats.kernel.cpu_use import Counted, derive_cpu_use
from nodeagent.formats.kernel.histogram import HistogramSyntaxError, parse_histogram
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError, SysfsSample
from nodeagent.formats.manifest.job_pod import job_pod
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest, pod_from_document, pod_to_document
from nodeagent.formats.manifest.variables import expand_process
from nodeagent.formats.runtime.annotations import read_annotations
from nodeagent.formats.runtime.calls import NriPayloadError, Synchronize, read_call
from nodeagent.formats.runtime.kubelet_pods import KubeletPodError, read_pod
from nodeagent.formats.runtime.mux import MuxError, Reassembly
from nodeagent.formats.runtime.ttrpc import TtrpcError, TtrpcFrame, read_request
from nodeagent.formats.scenario.scenario import ScenarioError, scenario_from_text
from nodeagent.formats.syntax.bind_address import BindAddressError, parse_bind_address
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
from nodeagent.formats.syntax.findings import DocumentError, Finding
from nodeagent.formats.syntax.go_json import GoJsonError, decode_json
from nodeagent.formats.syntax.json_values import JsonValue
from nodeagent.formats.topology.topology_json import TopologyDocumentError, topology_document, topology_from_document
from nodeagent.formats.wire.api_messages import ApiSyntaxError, parse_reply
from nodeagent.formats.wire.device_plugins import (
    MAX_ANSWER_BYTES,
    decode_access,
    decode_allocated,
    decode_devices,
    decode_options,
    decode_preferred,
    decode_registration,
    decode_variables,
)
from nodeagent.formats.wire.exchange import Peer
from nodeagent.formats.wire.grpc_messages import add_frame
from nodeagent.formats.wire.launcher_protocol import (
    LauncherProtocolError,
    StartRequest,
    decode_ack,
    decode_hello,
    decode_host,
    decode_list,
    decode_partition,
    decode_signal,
    decode_start,
    decode_subscribe,
    encode_start,
)
from nodeagent.formats.wire.pod_resources import LIST_RESPONSE
from nodeagent.formats.wire.protobuf import ProtobufError, decode, encode
from nodeagent.launcher import records as launcher_records
from nodeagent.launcher.clients import Clients
from nodeagent.launcher.order import Order, parse_order
from nodeagent.launcher.server import Launcher
from nodeagent.tools.fleet.differences import describe_differences
from nodeagent.tools.fleet.nodes import FleetNode
from nodeagent.views.checkpoint_text import render_checkpoint, summarise_checkpoint
from nodeagent.views.simulate.scenario_replay import replay
from tests.formats.checkpoint import test_checkpoint_versions as versions
from tests.support import kernel_histograms
from tests.support.builders import MACHINE_A
from tests.support.device_plugin import HOSTILE_STATUSES, MESSAGES as DEVICE_PLUGINS
from tests.support.hostile_plugin import HEAD, METHODS, frame, good_message
from tests.support.kubelet import MESSAGES, v1_pod
from tests.support.machine_tree import Cache, Machine as Tree
from tests.support.nri_runtime import NRI, PLUGIN, TTRPC, mux_frame, pods_and_containers, ttrpc_frame
from tests.support.pods import app, burstable, exclusive, init, pod
from tests.support.runtime_pods import sandbox_of, told
from tests.support.world import SMALL, empty_state, node

EXAMPLES = Path(__file__).parents[2] / "examples"
_FILLED_IN = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9]+|\[[^\]]*\]")


@dataclass(frozen=True)
class Target:
    name: str
    read: Callable[[bytes], Hashable]
    """Gives what kind of answer the bytes drew."""
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    """What an input of this kind is made of."""


def words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


def kind_of(message: object) -> str:
    """A refusal without what it quotes."""
    return _FILLED_IN.sub("#", str(message)[:400])[:60]


def fits_a_line(message: str, most: int = 1000) -> None:
    assert len(message) <= most, f"a refusal of {len(message)} characters"
    assert message.isprintable(), f"a refusal that a terminal could act on: {message!r}"


def refusal(err: NodeAgentError) -> Hashable:
    assert err.hint
    for line in err.message.splitlines():
        fits_a_line(line, 100_000)  # ten for each escaped character
    return kind_of(err.message)


def findings(found: tuple[Finding, ...]) -> Hashable:
    assert 0 < len(found) <= 101
    for finding in found:
        fits_a_line(str(finding))
    return frozenset(kind_of(f"{finding.field} {finding.allowed}") for finding in found[:5])


# What people write


def manifest(content: bytes) -> Hashable:
    """Whatever is accepted can be saved, read again, laid out below one directory, and asked of the launcher."""
    answers: set[Hashable] = set()
    for result in parse_manifest(content, "pod.yaml"):
        if isinstance(result, ManifestPod):
            can_be_kept(result.pod)
            can_be_started(result.pod)
            answers.add(
                (len(result.pod.containers), result.pod.restart_policy, frozenset(map(kind_of, result.unused_fields)))
            )
        else:
            assert result.name is None or result.name.isprintable()
            answers.add(findings(result.findings))
    return frozenset(answers)


def can_be_kept(pod: Pod) -> None:
    assert pod_from_document(pod_to_document(pod)) == pod
    entry = new_entry(Manifest(pod, Origin("pod.yaml")), 1, pod_level_resources=True)
    state = NodeState(EMPTY.promises, (entry,), generation=1)
    assert decode_state(encode_state(state, {})).state == state
    for container in pod.containers:
        parts = entry.container_path(container.name).split("/")
        assert all(
            part not in {"", ".", ".."} and len(os.fsencode(part)) <= 255 and part.isprintable() for part in parts
        )
        assert parts[-2].startswith("pod")


def can_be_started(pod: Pod) -> None:
    for container in pod.containers:
        process = expand_process(container)
        assert process is not None
        request = StartRequest(
            id=f"{pod.uid}/{container.name}/0",
            argv=process.argv,
            env=process.env,
            identifier=f"{pod.name}/{container.name}",
            cgroup=None,
            cwd=container.working_dir or "/",
            uid=container.run_as_user,
            gid=container.run_as_group,
            log_file=f"/var/log/{pod.namespace}/{pod.name}/{pod.uid}/{container.name}.log",
            grace_seconds=pod.termination_grace_seconds,
        )
        if process.argv:
            order = parse_order(json.loads(encode_start(request)), None)
            for text in (*order.argv, *order.env, *order.env.values(), order.cwd):
                assert "\0" not in text, "execve would end there"
                os.fsencode(text)


def configuration(content: bytes) -> Hashable:
    _, found = judge_config(content, "config.yaml", lambda config: find_unsuited(config, MACHINE_A))
    try:
        config = parse_config(content, "config.yaml")
    except DocumentError:
        assert found, "a machine makes nothing right"
        return findings(found)
    document = config_document(config)
    assert config_document(config_from_document(JsonValue(json.loads(json.dumps(document)), "config"))) == document
    for text in (config.state_directory, config.runtime_directory, config.static_pod_path, config.metrics_bind_address):
        os.fsencode(text)
        assert "\0" not in text
    return frozenset(kind_of(name) for name in config.reported_fields)


def quantity(content: bytes) -> Hashable:
    try:
        found = Quantity.parse(content.decode(errors="replace"))
    except QuantitySyntaxError as err:
        fits_a_line(str(err))
        return kind_of(err)
    again = Quantity.parse(str(found))
    assert again.nano == found.nano
    assert str(again) == str(found)
    assert found.nano <= (2**63 - 1) * 10**9
    return found.notation, found.nano > 0, len(str(found))


def histogram(content: bytes) -> Hashable:
    """What the kernel prints, with names that tasks have given themselves."""
    try:
        found = parse_histogram(content, _HISTOGRAM_KEYS, value="common_timestamp", task="common_pid")
    except HistogramSyntaxError as err:
        return kind_of(err)
    assert all(len(row.keys) == len(_HISTOGRAM_KEYS) and min(row.keys) >= 0 for row in found.rows)
    began = Counted(content, 0, 0)
    nothing = kernel_histograms.record(began_ns=0, ended_ns=1)
    used = derive_cpu_use(structs.replace(nothing, switches=began, ended_ns=10**9), CpuSet.parse("0-7"))
    assert all(0 <= run.ns <= used.elapsed_ns and run.times >= 0 for run in used.runs)
    return len(found.rows), len(used.runs), found.dropped > 0


_HISTOGRAM_KEYS = ("common_cpu", "common_pid", "next_pid")


def id_set(content: bytes) -> Hashable:
    try:
        found = CpuSet.parse(content.decode(errors="replace"))
    except IdSetSyntaxError as err:
        return kind_of(err)
    assert CpuSet.parse(str(found)) == found
    return len(found).bit_length(), str(found).count(","), str(found).count("-")


def duration(content: bytes) -> Hashable:
    try:
        found = parse_duration_ns(content.decode(errors="replace"))
    except DurationSyntaxError as err:
        return kind_of(err)
    assert abs(found) < 2**63
    return found > 0, len(str(found))


def bind_address(content: bytes) -> Hashable:
    try:
        found = parse_bind_address(content.decode(errors="replace"))
    except BindAddressError as err:
        return kind_of(err)
    assert parse_bind_address(str(found)) == found
    return type(found).__name__


def scenario(content: bytes) -> Hashable:
    try:
        found = scenario_from_text(content.decode(errors="replace"), "line 1")
    except ScenarioError as err:
        return refusal(err)
    return len(json.dumps(replay(found)))


def machine_document(content: bytes) -> Hashable:
    try:
        found = topology_from_document(json.loads(content.decode(errors="replace")))
    except TopologyDocumentError as err:
        return refusal(err)
    except (ValueError, RecursionError):
        return "no JSON"
    assert topology_from_document(topology_document(found)) == found
    assert describe_differences([FleetNode(name, name, found) for name in "ab"])["differing"] == []
    return len(found.cpus), len(found.numa)


# What lies in the state directory


def cpu_state(content: bytes) -> Hashable:
    text = content.decode(errors="replace")
    answers = [
        decode_cpu_state(text, pod_level=gate, initial=versions.IDS, newer=newer)
        for gate, newer in ((False, False), (True, True))
    ]
    for gate, found in zip((OFF, ON), answers, strict=True):
        promises = start(gate.managers, Records(cpu=found, memory=None))
        assert not isinstance(promises, StartRefused) or promises.about
    return tuple(kind_of(a.message) if isinstance(a, Unreadable) else len(a.entries) for a in answers)


def cpu_state_with_its_sum(content: bytes) -> Hashable:
    try:
        sums = read_cpu_contents(content.decode(errors="replace")).sums
    except GoJsonError as err:
        return kind_of(err)
    return frozenset(cpu_state(summed(content, checksum)) for checksum in sums.values())


def memory_state(content: bytes) -> Hashable:
    text = content.decode(errors="replace")
    answers = [decode_memory_state(text, pod_level=gate, newer=gate) for gate in (False, True)]
    for gate, found in zip((OFF, ON), answers, strict=True):
        start(gate.managers, Records(cpu=None, memory=found))
    return tuple(kind_of(a.message) if isinstance(a, Unreadable) else len(a.machine) for a in answers)


def memory_state_with_its_sum(content: bytes) -> Hashable:
    try:
        sums = read_memory_contents(decode_json(content.decode(errors="replace"))).sums
    except GoJsonError as err:
        return kind_of(err)
    return frozenset(memory_state(summed(content, checksum)) for checksum in sums.values())


def summed(content: bytes, checksum: int) -> bytes:
    return re.sub(rb'"checksum":[0-9]+', b'"checksum":%d' % checksum, content)


def own_state(content: bytes) -> Hashable:
    try:
        saved = decode_state(content)
    except NodeStateError as err:
        return refusal(err)
    again = decode_state(encode_state(saved.state, saved.policies))
    assert again == saved
    for gate in (OFF, ON):
        violations(gate.managers, saved.state)
    return len(saved.state.entries), len(saved.state.promises.pods)


def own_state_with_its_sum(content: bytes) -> Hashable:
    return own_state(seal(content, FORMAT, VERSION))


def any_checkpoint(content: bytes) -> Hashable:
    """`nodeagent checkpoint`."""
    try:
        found = read_checkpoint(content)
    except CheckpointError as err:
        return refusal(err)
    json.dumps(checkpoint_document(found))
    for line in (*summarise_checkpoint(found), *render_checkpoint(found)):
        fits_a_line(line, 20_000)
    answers: list[Hashable] = [found.version, kind_of(found.problem)]
    for to in WRITABLE:
        try:
            written = convert_checkpoint(found, to, versions.IDS, lossy=True)
        except CheckpointError as err:
            answers.append(refusal(err))
        else:
            assert read_checkpoint(written).problem is None
    return tuple(answers)


def launcher_record(content: bytes) -> Hashable:
    for old in RECORDS.iterdir():
        old.unlink()
    (RECORDS / "u%2Fc%2F0.json").write_bytes(content)
    with patch.object(launcher_records, "log"):  # a line for each of millions
        runs = launcher_records.RecordStore(RECORDS).load()
    for run in runs:
        assert type(run.pid) is int
        assert type(run.id) is str
        assert type(run.start_ticks) is int
    return len(runs)


def job_record(content: bytes) -> Hashable:
    """A record of a job names a process that there may be, and a pod that can be kept: each later agent reads the same of it."""
    record = parse_record(content)
    if record is None:
        return "no record"
    again = parse_record(format_record(record))
    assert again is not None
    assert parse_record(format_record(again)) == again
    assert 1 <= record.pid <= 2**22
    assert min(record.user, record.start_ticks) >= 0
    can_be_kept(again.pod)
    return len(record.pod.containers), record.pod.numa_node is None, record.pid.bit_length(), record.user.bit_length()


# What the kernel writes


def machine(content: bytes) -> Hashable:
    """Some of a machine's files are replaced: each by what follows a byte that names it."""
    files = dict(SAMPLE.files)
    names = sorted(files)
    for part in content.split(b"\x1e")[:8]:
        if part:
            text = part[1:].decode(errors="replace")
            files[names[part[0] % len(names)]] = text
    try:
        found = topology_of(SysfsSample(files, SAMPLE.directories))
    except SysfsError as err:
        refusal(err)
        return err.path.rpartition("/")[2], kind_of(err.message.partition(": ")[2])
    assert topology_from_document(topology_document(found)) == found
    assert describe_differences([FleetNode(name, name, found) for name in "ab"])["differing"] == []
    return len(found.cpus), len(found.numa), len(found.l3), found.socket_count


def cgroup_value(content: bytes) -> Hashable:
    text = content.decode(errors="replace")
    answers: list[Hashable] = []
    for attribute in Attribute:
        try:
            answers.append(type(parse_value(attribute, text)).__name__)
        except CgroupValueError as err:
            fits_a_line(str(err))
            answers.append("no")
    try:
        answers.append(len(parse_flat_keyed(text)))
    except CgroupValueError as err:
        fits_a_line(str(err))
    return tuple(answers)


# What comes over a socket


def request(content: bytes) -> Hashable:
    """To the agent's socket, by root, by the group and by a stranger."""
    line = content.partition(b"\n")[0] + b"\n"
    answers = []
    for peer in (Peer(0, frozenset({0})), Peer(7, frozenset({7})), Peer(8, frozenset({8}))):
        reply = json.loads(LOOP.run_until_complete(API.answer(line, peer)))
        answers.append(reply["ok"] or kind_of(reply["error"]["message"]))
    assert answers[2] is not True
    return tuple(answers)


def reply(content: bytes) -> Hashable:
    try:
        return type(parse_reply(content)).__name__
    except NodeAgentError:
        return "error"
    except ApiSyntaxError as err:
        return kind_of(err)


def http(content: bytes) -> Hashable:
    answer = LOOP.run_until_complete(PAGES.answer(content.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", None))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head or content.startswith(b"HEAD")
    return head.partition(b"\r\n")[0]


def grpc_frames(content: bytes) -> Hashable:
    """From a client that has begun as it should; each of its frames may be a connection's last."""
    bugs: list[Exception] = []
    connection = GrpcConnection(POD_RESOURCES, bugs.append)
    answer = b""
    for sent in (HTTP2_BEGINNING, content):
        connection.receive(sent)
        answer += b"".join(iter(connection.take_output, b""))
    assert not bugs, bugs
    kinds, at = [], 0
    while at < len(answer):
        length, kind = int.from_bytes(answer[at : at + 3]), answer[at + 3]
        kinds.append((kind, int.from_bytes(answer[at + 9 : at + 13]) % 16 if kind == 3 else length % 64))
        at += 9 + length
    return connection.is_over, connection.waits_for_client, tuple(kinds[:6])


class Server:
    """A socket at which a gRPC client calls, without a thread: what is sent before the client reads waits in the socket."""

    def __init__(self) -> None:
        self.path = Path(f"\0nodeagent-fuzz-{os.getpid()}-{id(self)}")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()

    def answer(self, content: bytes) -> list[bytes]:
        """Return the messages that a client reads, if these bytes are all that it gets. Raises GrpcError."""
        with GrpcClient(DEVICE_PLUGIN, self.path, time.monotonic() + 60, 1 << 20) as client:
            channel, _ = self._listener.accept()
            with channel:
                channel.sendall(content)
                channel.shutdown(socket.SHUT_WR)
                return list(client.watch("/v1beta1.DevicePlugin/Allocate", b""))


SERVER = Server()


def grpc_answer(content: bytes) -> Hashable:
    """From a server, to one call."""
    try:
        return len(SERVER.answer(content))
    except GrpcError as err:
        fits_a_line(err.what)
        return err.status is None, kind_of(err.what)


def device_plugin_message(content: bytes) -> Hashable:
    """Read by each method: what is taken is within the bounds, and can be saved and shown."""
    taken: list[Hashable] = []
    for read in (
        decode_registration,
        decode_options,
        decode_devices,
        decode_preferred,
        decode_allocated,
        decode_access,
    ):
        try:
            found = read(content)
        except ProtobufError as err:
            fits_a_line(str(err))
            taken.append(kind_of(err))
            continue
        taken.append(bool(found))
        if isinstance(found, bytes):
            assert len(found) <= MAX_ANSWER_BYTES
            assert all("\0" not in name + value for name, value in decode_variables(found))
    return tuple(taken)


def protobuf_message(content: bytes) -> Hashable:
    try:
        return tuple(sorted(name for name, value in decode(LIST_RESPONSE, content).items() if value))
    except ProtobufError as err:
        return kind_of(err)


def kubelet_pod(content: bytes) -> Hashable:
    """What is read becomes part of a pod and of the saved state, whatever the runtime was asked for."""
    try:
        pod = read_pod(content, "uid-web")
    except KubeletPodError as err:
        fits_a_line(str(err))
        return kind_of(err)
    seen = [told(WEB, one) for one in WEB.containers]
    found = build_runtime_pod(sandbox_of(WEB), seen, add_kubelet_data(StatedPod(), pod), 2**36)
    state = structs.replace(EMPTY, runtime=Registry(pods=(pod,)))
    assert decode_state(encode_state(state, {})).state == state
    assert pod_from_document(pod_to_document(found.pod)) == found.pod
    return tuple(sorted({(one.what, one.by, one.is_exact) for one in found.known}))[:8]


def uevent(content: bytes) -> Hashable:
    """Sent by the stand-in for the kernel (its address begins with 0) after one that concerns nobody."""
    KERNEL.send(b"change@/x\0SUBSYSTEM=block\0")
    KERNEL.send(content)
    return drain(HOTPLUG)


class _NeverForks(Launcher):
    def fork(self, _order: Order, _link: int) -> int:
        raise OSError(errno.EAGAIN, "no processes here")


class _OneClient(Clients):
    def receive(self, client: socket.socket) -> None:
        self.subscribed.setdefault(client, False)
        super().receive(client)

    def drop(self, client: socket.socket) -> None:
        self.subscribed.pop(client, None)


def launcher_request(content: bytes) -> Hashable:
    if not content:
        return None
    THEIRS.send(content)
    CLIENTS.receive(OURS)
    answer = json.loads(THEIRS.recv(1 << 20))
    refused = answer.get("refused")
    return (refused["code"], kind_of(refused["message"])) if refused else frozenset(answer)


def launcher_answer(content: bytes) -> Hashable:
    answers = []
    readers = (
        decode_hello,
        decode_start,
        decode_list,
        decode_signal,
        decode_ack,
        decode_subscribe,
        decode_partition,
        decode_host,
    )
    for read in readers:
        try:
            answers.append(type(read(content)).__name__)
        except LauncherProtocolError as err:
            refusal(err)
            answers.append(kind_of(err.message.partition(": ")[0]))
    return tuple(answers)


def runtime_calls(content: bytes) -> Hashable:
    """What a container runtime sends, cut anywhere: what is understood is the same."""
    middle = len(content) // 2
    found = called(content)
    assert called(content[:middle], content[middle:]) == found
    return tuple(answer for _, answer in found)


def called(*pieces: bytes) -> list[tuple[int, Hashable]]:
    reassembly, answers = Reassembly(), list[tuple[int, Hashable]]()
    try:
        for piece in pieces:
            answers += ((connection, call_in(frame)) for connection, frame in reassembly.feed(piece))
    except MuxError as err:
        answers.append((0, kind_of(err)))
    return answers


def call_in(frame: TtrpcFrame) -> Hashable:
    try:
        request = read_request(frame)
        call = read_call(request.method, request.payload)
    except (TtrpcError, NriPayloadError) as err:
        fits_a_line(str(err))
        return kind_of(err)
    if isinstance(call, Call):
        return call.event, taken(call)
    return type(call).__name__ if not isinstance(call, Synchronize) else taken(call.part)


def taken(what: Call | Synchronized) -> Hashable:
    """What the core makes of it, whatever it says."""
    pairs = [(what.sandbox, what.container)] if isinstance(what, Call) else []
    if isinstance(what, Synchronized):
        boxes = {box.id: box for box in what.sandboxes}
        pairs = [(boxes[one.sandbox_id], one) for one in what.containers if one.sandbox_id in boxes]
    kinds = set()
    for box, container in pairs:
        read = read_annotations(box)
        kinds |= {kind_of(finding) for finding in read.findings}
        found = build_runtime_pod(box, () if container is None else (container,), read.stated, 2**36)
        kinds |= {kind_of(one.what) for one in found.contradictions}
        for text in (*(one.text for one in found.contradictions), *map(str, read.findings)):
            fits_a_line(text)
        assert all(one.value for one in found.known if one.what != "containers")
    stepped = apply_event(Registry(), what, {})
    return frozenset(kinds), tuple(type(one).__name__ for one in stepped.todo[:4])


def annotations(content: bytes) -> Hashable:
    """Lines of `key value`."""
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    pairs = {key: value for key, _, value in (line.partition(" ") for line in lines)}
    box = Sandbox("box", "uid", "pod", "default", (), tuple(sorted(pairs.items())), "")
    read = read_annotations(box)
    return findings(read.findings) if read.findings else len(read.stated.containers)


def kubelet_files(content: bytes) -> Hashable:
    text = content.decode("utf-8", "replace")
    found = find_kubelet_conflicts(KubeletFiles((("f", content),), (), cpu_state=text, memory_state=text))
    for finding in found:
        fits_a_line(str(finding))
    return tuple(kind_of(finding) for finding in found[:3])


def containerd_config(content: bytes) -> Hashable:
    try:
        read_imports(content, "f")
        found = read_nri_config((("f", content),))
    except ContainerdConfigError as err:
        fits_a_line(str(err))
        return kind_of(err)
    return tuple(str(getattr(found, field)) for field in found.__struct_fields__)


EMPTY = empty_state(node(SMALL))
OFF = node(SMALL, memory_manager_policy="None")
ON = node(SMALL, gates=(("PodLevelResources", True), ("PodLevelResourceManagers", True)))
_HELD = tempfile.TemporaryDirectory(prefix="nodeagent-fuzz-")
RECORDS = Path(_HELD.name, "records")
RECORDS.mkdir()
TREE = Tree(
    cores=("0,4", "1,5", "2,6", "3,7"),
    packages=("0-1,4-5", "2-3,6-7"),
    nodes=((0, "0-1,4-5"), (1, "2-3,6-7")),
    caches=(Cache(3, 3, "0-1,4-5", 0), Cache(3, 3, "2-3,6-7", 1)),
)
SAMPLE = read_machine(str(TREE.grow(Path(_HELD.name, "machine"))))
LOOP = asyncio.new_event_loop()


async def _no_pod(_: Mapping[str, Any]) -> None:
    raise NodeAgentError("no such pod", hint="look")


API = LocalApi(reads={"snapshot": dict}, writes={"retry": _no_pod}, owner=0, group=7)


async def _one_metric() -> bytes:
    return b"metric 1\n"


PAGES = MetricsPages(metrics=_one_metric, content_type="text/plain", checks={"/readyz": lambda: (False, "not yet")})
NO_PODS: Any = SimpleNamespace(node=SimpleNamespace(managers=node(SMALL).managers), state=empty_state(node(SMALL)))
POD_RESOURCES = PodResources(lambda: NO_PODS, {}, clock=map(float, count()).__next__).methods()
HTTP2_BEGINNING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
HTTP2_CALL = hpack.hpack.Encoder().encode(
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1.PodResourcesLister/Get"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
    ]
)
OURS, THEIRS = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
OURS.setblocking(False)
HOTPLUG, KERNEL = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
HOTPLUG.bind("")
HOTPLUG.setblocking(False)
KERNEL.bind("")
KERNEL.connect(HOTPLUG.getsockname())
LAUNCHER = _NeverForks(Path("/sys/fs/cgroup/pods"), RECORDS, "/no-journal", OURS)
CLIENTS = LAUNCHER.clients = _OneClient(OURS, LAUNCHER.selector, LAUNCHER.answer)

POD_WORDS = (
    *words(
        "apiVersion: v1 kind: Pod List PodList items: metadata: name: namespace: uid: labels: spec: containers: initContainers: "
        "command: args: env: value: valueFrom: workingDir: restartPolicy: Always OnFailure Never securityContext: runAsUser: "
        "runAsGroup: runAsNonRoot: resources: requests: limits: cpu: memory: hugepages-2Mi: ephemeral-storage: overhead: "
        "terminationGracePeriodSeconds: nodeName: volumes: 500m 1Gi 2 true null ~ '' [] {} --- ... &a *a <<: !!str !!int !x | > "
        "- : , [ ] { } # $(A) ' \" \\u0041 1e9 -1 0x10 .5 %YAML %TAG"
    ),
    b"\n",
    b"\n  ",
    b"\n    ",
    b"\n---\n",
)
CONFIG_WORDS = (
    *words(
        "apiVersion: kind: cpuManagerPolicy: static none cpuManagerPolicyOptions: full-pcpus-only: strict-cpu-reservation: "
        "reservedSystemCPUs: systemReserved: kubeReserved: topologyManagerPolicy: best-effort restricted single-numa-node "
        "topologyManagerScope: pod container topologyManagerPolicyOptions: max-allowable-numa-nodes: memoryManagerPolicy: Static None "
        "reservedMemory: numaNode: limits: evictionHard: memory.available: nodefs.available: 5% 100Mi featureGates: "
        "cpuCFSQuotaPeriod: CustomCPUCFSQuotaPeriod: cpuManagerReconcilePeriod: 10s 1m30s maxPods: podsPerCore: stateDirectory: "
        "/var metricsBindAddress: 127.0.0.1:9 unix:/x metricsAliases: jobs: group: stateRecovery: strict recover isolatedCPUs: errata: "
        "exclusiveCoreClass: sharedCoreClass: hostCoreClass: performance efficiency any cgroupRoot: true false null '' [] {} 1 0-3 "
        "cpuManagerPlugins: name: options: spread-caches"
    ),
    b"\n",
    b"\n  ",
)
JSON_WORDS = words('{ } [ ] : , "" null true false 0 -1 1e9 0.5 \\u0000 \\ud800 "0-3" "7" {} [] NaN Infinity')
STATE_WORDS = JSON_WORDS + words(
    '"entries": "pod": "cpus": "promises": "default": "memory": "podCpus": "podMemory": "hints": "containers": "outcome": '
    '"Failed" "deletingSinceMs": "exit": "lastExit": "refusal": "qos": "Guaranteed" "source": "attempt": "generation": '
    '"policies": "cpuReuse": "memoryReuse": "tables": "cells": "assignments": "id":'
)
KUBELET_WORDS = JSON_WORDS + words(
    '"policyName": "static" "Static" "defaultCpuSet": "defaultCPUSet": "entries": "podEntries": "cpuSet": "checksum": '
    '"machineState": "memoryMap": "numberOfAssignments": "cells": "total": "systemReserved": "allocatable": "reserved": "free": '
    '"numaAffinity": "type": "size": "data": "dataChecksum":'
)
API_WORDS = JSON_WORDS + words('"op": "snapshot" "retry" "ok": "result": "error": "message": "hint":')
JOB_WORDS = words(
    '"pid": "startTicks": "user": "pod": "metadata": "annotations": {"nodeagent.io/numa-node":"0"} "spec": "containers": "resources": '
    '{"nodeagent.io/core-class":"any"} {"near.nodeagent.io/main":"eth0, nvme"} '
    '"limits": "requests": "cpu": "memory": "1Gi" "2" "name": "uid": "namespace": "jobs" 4194304 4194305'
)
LAUNCHER_WORDS = JSON_WORDS + words(
    '"op": "hello" "start" "list" "signal" "ack" "subscribe" "protocol": "id": "argv": "env": "cwd": "uid": "gid": "groups": '
    '"identifier": "log_file": "grace_seconds": "cgroup": "/sys/fs/cgroup/pods/a" "ids": "after": "statuses": "more": "status": '
    '"failed": "stage": "exec" "errno": "message": "refused": "code": "exit_code": "finished_at_ms": "unknown": "delivered": '
    '"acked": "subscribed": "partition" "kind": "root" "isolated" "host" "gather" "gathered": "writes": "thread 2@1" "results": '
    '"tell" "session": "ticks": "line": "told": '
    '"pid": "start_ticks": "boot_id": "started_at_ms":'
)
_STATES = tuple(content for content, _ in versions.FILES.values())
_CPU = tuple(content for name, (content, _) in versions.FILES.items() if name.startswith("cpu"))
_MEMORY = tuple(content for name, (content, _) in versions.FILES.items() if name.startswith("memory"))
_MANIFESTS = tuple(path.read_bytes() for path in sorted(EXAMPLES.glob("*.yaml")) if b"kind: Pod" in path.read_bytes())
_POD = next(r.pod for r in parse_manifest(_MANIFESTS[0], "") if isinstance(r, ManifestPod))
_OWN = encode_state(
    structs.replace(EMPTY, entries=(new_entry(Manifest(_POD, Origin("a.yaml")), 1, pod_level_resources=True),)),
    {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"},
)
_TRUTHS = (versions.OWN, _OWN)
START = encode_start(StartRequest("u/c/0", ("sleep", "1"), (("A", "b"),), "web/c", "/sys/fs/cgroup/pods/a"))
RUN = (
    b'{"id":"u/c/0","pid":7,"start_ticks":1,"boot_id":"b","cgroup":null,"grace_seconds":30,"started_at_ms":1,'
    b'"finished_at_ms":null,"exit_code":null,"signal":null,"core_dumped":false,"unknown":null}'
)
_SCENARIO = (
    b'{"id":"x","topology":{"cpus":[{"id":0,"core":0,"socket":0,"numa":0,"uncore":0},{"id":1,"core":0,"socket":0,"numa":0}]},'
    b'"numa":[{"id":0,"memory":1024,"hugepages":{"hugepages-2Mi":2},"distances":[10]}],"config":{"cpuManagerPolicy":"static",'
    b'"reservedSystemCPUs":"0"},"steps":[{"op":"add","pod":{"metadata":{"name":"a","uid":"u"},"spec":{"containers":[{"name":"c",'
    b'"resources":{"limits":{"cpu":"1","memory":"1Mi"}}}]}}},{"op":"start","podUID":"u","container":"c"},{"op":"restart"},'
    b'{"op":"removeContainer","podUID":"u","container":"c"},{"op":"removePod","podUID":"u"}]}'
)

_POD_AND_CONTAINER = {
    "pod": NRI.PodSandbox(id="p", uid="u", labels={"a": "b"}),
    "container": pods_and_containers(1)[1][0],
}
_CALLS = {
    "Configure": NRI.ConfigureRequest(runtime_name="containerd", runtime_version="2.1.9", request_timeout=2000),
    "Synchronize": NRI.SynchronizeRequest(pods=pods_and_containers(4)[0], containers=pods_and_containers(4)[1]),
    "CreateContainer": NRI.CreateContainerRequest(**_POD_AND_CONTAINER),
    "UpdateContainer": NRI.UpdateContainerRequest(**_POD_AND_CONTAINER, linux_resources={"cpu": {"cpus": "0-3"}}),
    "StopContainer": NRI.StopContainerRequest(**_POD_AND_CONTAINER),
    "StateChange": NRI.StateChangeEvent(**_POD_AND_CONTAINER, event=6),
    "StartContainer": NRI.StartContainerRequest(**_POD_AND_CONTAINER),
    "StopPodSandbox": NRI.StopPodSandboxRequest(pod=_POD_AND_CONTAINER["pod"]),
}
_NRI = tuple(
    mux_frame(
        1,
        ttrpc_frame(
            1, 1, TTRPC.Request(service=PLUGIN, method=method, payload=one.SerializeToString()).SerializeToString()
        ),
    )
    for method, one in _CALLS.items()
)
NRI_WORDS = (
    b"\0\0\0\1",
    b"\0\0\0\2",
    b"\0\x40\0\0",
    b"\1\0",
    b"\x0a\x02",
    b"\x12\0",
    *(method.encode() for method in _CALLS),
)

SETTINGS_FRAME = frame(4)
ANSWER = (
    frame(1, hpack.Encoder().encode(HEAD), 4, 1)
    + frame(0, add_frame(good_message("Allocate").SerializeToString()), 0, 1)
    + frame(1, hpack.Encoder().encode([("grpc-status", "0")]), 5, 1)
)
REFUSAL = frame(1, hpack.Encoder().encode([*HEAD, ("grpc-status", "13"), ("grpc-message", "no")]), 5, 1)
PLUGIN_MESSAGES = (
    *(good_message(method) for method in METHODS),
    DEVICE_PLUGINS.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="example.com/gpu"),
    DEVICE_PLUGINS.ListAndWatchResponse(devices=[{"ID": "a", "topology": {"nodes": [{"ID": -1}, {"ID": 1}]}}]),
    DEVICE_PLUGINS.ContainerAllocateResponse(
        envs={"A": "b"},
        mounts=[{"container_path": "/a", "host_path": "/b"}],
        devices=[{"container_path": "/dev/a", "host_path": "/dev/b"}],
        cdi_devices=[{"name": "example.com/gpu=0"}],
    ),
)

_JOBS = tuple(
    format_record(JobRecord(job_pod("make-7", "uid-7", {"cpu": cpu, "memory": "1Gi"}, node, cores), 1000, 77, 123))
    for cpu, node, cores in (("2", None, "efficiency"), ("500m", "1", None))
)

WEB = pod("web", init("setup", "3"), app("main", resources=burstable("1500m")), resources=exclusive("4", "1Gi"))
_KUBELET_PODS = tuple(
    MESSAGES.GetPodResponse(pod=v1_pod(one).SerializeToString()).SerializeToString()
    for one in (WEB, structs.replace(WEB, resources=None))
)

TARGETS = (
    Target("nri", runtime_calls, (*_NRI, b"".join(_NRI)), NRI_WORDS),
    Target(
        "kubelet-pod",
        kubelet_pod,
        _KUBELET_PODS,
        words("uid-web main setup cpu memory hugepages-2Mi 1500m 64Mi Always"),
    ),
    Target(
        "pod-annotations",
        annotations,
        (
            b"nodeagent.io/containers a=init, b\nrequests.nodeagent.io/a cpu=1\nlimits.nodeagent.io/b memory=1Gi,cpu=2",
            b"exclusive-cpus.nodeagent.io/a 1\ninterrupts.nodeagent.io/a eth0\nnodeagent.io/partition isolated",
        ),
        words(
            "nodeagent.io/containers requests.nodeagent.io/ limits.nodeagent.io/ cpu= memory= hugepages-2Mi= =init , 1Gi"
        ),
    ),
    Target(
        "kubelet-beside",
        kubelet_files,
        (b"cpuManagerPolicy: static\nmemoryManagerPolicy: None\n", b'{"policyName":"static","data":"{}"}'),
        words('cpuManagerPolicy: memoryManagerPolicy: none static {"policyName": "data": [] null'),
    ),
    Target(
        "containerd-config",
        containerd_config,
        (
            b'imports = ["/etc/x/*.toml"]\n[plugins."io.containerd.nri.v1.nri"]\ndisable = true\nsocket_path = "/x"\n',
            b'disabled_plugins = ["io.containerd.nri.v1.nri"]\n[plugins]\n"io.containerd.nri.v1.nri" = {plugin_request_timeout = "2s"}\n',
        ),
        words('imports = [ ] { } disable plugins "io.containerd.nri.v1.nri" true false "2s" plugin_request_timeout'),
    ),
    Target(
        "manifest",
        manifest,
        (*_MANIFESTS, json.dumps({"apiVersion": "v1", "kind": "Pod", **pod_to_document(_POD)}).encode()),
        POD_WORDS,
    ),
    Target("configuration", configuration, (b"", (EXAMPLES / "config.yaml").read_bytes()), CONFIG_WORDS),
    Target(
        "quantity", quantity, (b"1500m", b"1.5Gi", b"1e3", b"-.5E-2"), words("n u m k M Ki Mi Gi Ti Pi Ei e3 E+ . - +")
    ),
    Target("id-set", id_set, (b"0-3,8", b"", b"4095"), words(", - 0- -1 + 4095 4096 0-4095")),
    Target(
        "histogram",
        histogram,
        (kernel_histograms.switches([(9, 3, 0, 7), (12, 3, 7, 0)], {7: "a name"}), kernel_histograms.text([])),
        words("{ common_cpu: 3, common_pid: [ 7], next_pid: } hitcount: common_timestamp: Totals: Entries: Dropped:"),
    ),
    Target("duration", duration, (b"10s", b"1m30s", b"1.5h"), words("ns us \u00b5s ms s m h . - + 0")),
    Target("bind-address", bind_address, (b"127.0.0.1:9", b"[::1]:1", b"unix:/run/x"), words("unix: / : [ ] :: 65535")),
    Target(
        "scenario",
        scenario,
        (_SCENARIO,),
        JSON_WORDS + words('"op": "add" "restart" "podUID": "files": "cpu_manager_state": "errata":'),
    ),
    Target(
        "machine-document", machine_document, (_SCENARIO, json.dumps(topology_document(SMALL)).encode()), JSON_WORDS
    ),
    Target("cpu-checkpoint", cpu_state, _CPU, KUBELET_WORDS),
    Target("cpu-checkpoint-summed", cpu_state_with_its_sum, _CPU, KUBELET_WORDS),
    Target("memory-checkpoint", memory_state, _MEMORY, KUBELET_WORDS),
    Target("memory-checkpoint-summed", memory_state_with_its_sum, _MEMORY, KUBELET_WORDS),
    Target("truth", own_state, _TRUTHS, STATE_WORDS),
    Target("truth-summed", own_state_with_its_sum, tuple(t.splitlines()[1] for t in _TRUTHS), STATE_WORDS),
    Target("any-checkpoint", any_checkpoint, (*_STATES, *_TRUTHS), KUBELET_WORDS + STATE_WORDS),
    Target("launcher-record", launcher_record, (RUN,), LAUNCHER_WORDS),
    Target("job-record", job_record, _JOBS, STATE_WORDS + JOB_WORDS),
    Target(
        "sysfs",
        machine,
        (b"\x000-7\n", b"\x050-3\n\x1e\x0b1\n"),
        words("0-7 -1 21 kB MemTotal: 32768K Unified ffffffff,0"),
    ),
    Target(
        "cgroup-file", cgroup_value, (b"max 100000\n", b"0-3", b"populated 1\nfrozen 0\n"), words("max 0-3 populated 1")
    ),
    Target("api-request", request, (b'{"op":"snapshot"}', b'{"op":"retry","pod":"a"}'), API_WORDS),
    Target(
        "api-reply", reply, (b'{"ok":true,"result":1}', b'{"ok":false,"error":{"message":"a","hint":"b"}}'), API_WORDS
    ),
    Target(
        "http-request",
        http,
        (b"GET /metrics HTTP/1.1\r\nHost: x", b"HEAD /readyz HTTP/1.0"),
        words("GET HEAD POST / ? \r\n"),
    ),
    Target(
        "grpc-frames",
        grpc_frames,
        (
            len(HTTP2_CALL).to_bytes(3) + b"\1\4\0\0\0\1" + HTTP2_CALL + b"\0\0\5\0\1\0\0\0\1" + bytes(5),
            b"\0\0\4\x08\0\0\0\0\0\0\0\xff\xff" + b"\0\0\x08\6\0\0\0\0\0" + bytes(8),
        ),
        tuple(
            bytes((0, 0, 4, kind, flags, 0, 0, 0, stream))
            for kind in range(10)
            for flags in (0, 5)
            for stream in (0, 1, 3)
        ),
    ),
    Target(
        "grpc-answer",
        grpc_answer,
        (SETTINGS_FRAME + ANSWER, SETTINGS_FRAME + ANSWER[: len(ANSWER) // 2], SETTINGS_FRAME + REFUSAL),
        (
            ANSWER,
            REFUSAL,
            *(
                bytes((0, 0, length, kind, flags, 0, 0, 0, stream))
                for kind in range(10)
                for flags, length in ((0, 4), (4, 8), (5, 1))
                for stream in (0, 1, 2)
            ),
            *(
                frame(1, hpack.Encoder().encode([("grpc-status", status)]), 5, 1)
                for status in HOSTILE_STATUSES
                if status.isascii()
            ),
        ),
    ),
    Target(
        "device-plugin-message",
        device_plugin_message,
        tuple(one.SerializeToString() for one in PLUGIN_MESSAGES),
        (b"\x0a\x02", b"\x12\x00", b"\x1a\x04", b"\x08\x01", b"\xff\xff\xff\xff\x0f", b"\x22\x06\x0a\x01a\x12\x01b"),
    ),
    Target(
        "protobuf",
        protobuf_message,
        (
            encode(
                LIST_RESPONSE, {"pod_resources": [{"name": "a", "cpu_ids": [1, 300], "memory": [{"size": 1 << 40}]}]}
            ),
        ),
        (b"\x0a\x02", b"\x22\x01\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff"),
    ),
    Target(
        "uevent",
        uevent,
        (b"online@/devices/system/cpu/cpu3\0ACTION=online\0SUBSYSTEM=cpu\0SEQNUM=7\0",),
        words("SUBSYSTEM= cpu memory node block = @ ACTION=offline libudev"),
    ),
    Target(
        "launcher-request",
        launcher_request,
        (
            START,
            b'{"op":"hello","protocol":1}',
            b'{"op":"ack","ids":["a"]}',
            b'{"op":"list","after":""}',
            b'{"op":"signal","id":"a","signal":15}',
            b'{"op":"tell","session":3,"ticks":1000,"line":"x"}',
        ),
        LAUNCHER_WORDS,
    ),
    Target(
        "launcher-answer",
        launcher_answer,
        (
            b'{"statuses":[' + RUN + b'],"more":false}',
            b'{"status":' + RUN + b"}",
            b'{"failed":{"id":"a","stage":"exec","errno":2,"message":"x"}}',
            b'{"delivered":true}',
            b'{"acked":["a"]}',
            b'{"subscribed":true}',
            b'{"partition":"root"}',
            b'{"gathered":2}',
            b'{"results":[null,"Invalid argument"]}',
        ),
        LAUNCHER_WORDS,
    ),
)
