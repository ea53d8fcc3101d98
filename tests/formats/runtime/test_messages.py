"""The tables and what is made of them, against the library's own reading and writing of upstream's messages."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from hypothesis import given, strategies as st

from nodeagent.core.model.device_access import DeviceAccess, DeviceFile, DeviceMount
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import (
    Answer,
    Call,
    ContainerState,
    Event,
    HugepageLimit,
    NriContainer,
    NriResources,
    Runtime,
    Sandbox,
    Synchronized,
    Update,
)
from nodeagent.formats.runtime import calls, messages, ttrpc
from nodeagent.formats.runtime.calls import (
    Configure,
    NriPayloadError,
    Shutdown,
    Synchronize,
    event_mask,
    nri_version,
    read_call,
)
from nodeagent.formats.runtime.ttrpc import (
    TtrpcCode,
    TtrpcError,
    TtrpcFrame,
    TtrpcFrameType,
    TtrpcRequest,
    TtrpcResponse,
)
from nodeagent.formats.wire.protobuf import Kind, MessageType
from tests.support.nri_runtime import OWN_METHODS
from tests.support.protos import generated

NRI, TTRPC = generated("nri")[0], generated("ttrpc")[0]
KINDS = {
    FieldDescriptor.TYPE_INT32: Kind.INT32,
    FieldDescriptor.TYPE_INT64: Kind.INT64,
    FieldDescriptor.TYPE_UINT32: Kind.UINT32,
    FieldDescriptor.TYPE_UINT64: Kind.UINT64,
    FieldDescriptor.TYPE_BOOL: Kind.BOOL,
    FieldDescriptor.TYPE_ENUM: Kind.ENUM,
    FieldDescriptor.TYPE_STRING: Kind.STRING,
    FieldDescriptor.TYPE_BYTES: Kind.BYTES,
}
TABLES = [
    *(("nri", one) for one in vars(messages).values() if isinstance(one, MessageType)),
    *(("ttrpc", one) for one in vars(ttrpc).values() if isinstance(one, MessageType)),
]


@pytest.mark.parametrize(("protocol", "table"), TABLES, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_table_has_upstreams_numbers_names_and_types(protocol, table):
    theirs = generated(protocol)[0].DESCRIPTOR.message_types_by_name[table.name]
    for field in table.by_number.values():
        their = theirs.fields_by_number[field.number]
        assert their.name == field.name
        if their.message_type is not None and their.message_type.GetOptions().map_entry:
            assert field.type is Kind.STRING_MAP
            continue
        assert field.repeated == their.is_repeated
        if isinstance(field.type, MessageType):
            shape = {one.number: one.type for one in their.message_type.fields}
            assert shape.keys() >= field.type.by_number.keys()
            assert their.message_type.name.removesuffix("64") == field.type.name.removesuffix("64")
        elif their.type == FieldDescriptor.TYPE_MESSAGE:
            assert table.name == "SynchronizeRequest", "only there each is spelt by itself"
            assert field.type is Kind.BYTES
        else:
            assert field.type is KINDS[their.type]


def test_events_and_states_are_upstreams():
    theirs = NRI.DESCRIPTOR.enum_types_by_name
    events = {value.name: value.number for value in theirs["Event"].values}
    states = {value.name: value.number for value in theirs["ContainerState"].values}
    assert {event.name: event.value for event in Event} | {"UNKNOWN": 0} == events
    assert {f"CONTAINER_{state.name}": state.value for state in ContainerState} == states


# What the runtime says.

TEXT = st.text(max_size=20)
SCALARS = {
    Kind.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    Kind.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    Kind.UINT32: st.integers(0, (1 << 32) - 1),
    Kind.UINT64: st.integers(0, (1 << 64) - 1),
    Kind.BOOL: st.booleans(),
    Kind.STRING: TEXT,
    Kind.BYTES: st.binary(max_size=20),
}


def any_message(descriptor, depth=0) -> st.SearchStrategy[dict[str, Any]]:
    """Any message of upstream's, its fields that we don't know among them, as JSON has it."""

    def one(field) -> st.SearchStrategy[Any]:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return st.dictionaries(TEXT, TEXT, max_size=3)
        if field.message_type is not None:
            value: st.SearchStrategy[Any] = any_message(field.message_type, depth + 1)
        elif field.enum_type is not None:
            value = st.sampled_from([v.name for v in field.enum_type.values])
        else:
            value = SCALARS[KINDS[field.type]]
        return st.lists(value, max_size=3 if depth < 2 else 1) if field.is_repeated else value

    names = [field.name for field in descriptor.fields]
    chosen = st.lists(st.sampled_from(names), unique=True) if names else st.just([])
    return chosen.flatmap(lambda some: st.fixed_dictionaries({n: one(descriptor.fields_by_name[n]) for n in some}))


def stub(name: str) -> st.SearchStrategy[Any]:
    return any_message(NRI.DESCRIPTOR.message_types_by_name[name]).map(
        lambda value: ParseDict(value, getattr(NRI, name)())
    )


SANDBOXES = st.builds(
    lambda pod, i: (pod.MergeFrom(NRI.PodSandbox(id=i)), pod)[1], stub("PodSandbox"), TEXT.filter(bool)
)
CONTAINERS = st.builds(
    lambda one, i: (one.MergeFrom(NRI.Container(id=i)), one)[1], stub("Container"), TEXT.filter(bool)
)


def expected_ids(kind, text):
    try:
        return kind.parse(text) if text else None
    except ValueError:
        return None


def bounded(amount: int, most: int) -> int:
    """No sum of amounts may be beyond what can be saved."""
    return max(-1, min(amount, most))


def expected_resources(theirs) -> NriResources:
    cpu, memory = theirs.cpu, theirs.memory
    return NriResources(
        expected_ids(CpuSet, cpu.cpus),
        expected_ids(NumaSet, cpu.mems),
        bounded(cpu.shares.value, 2**40) if cpu.HasField("shares") else None,
        bounded(cpu.quota.value, 2**40) if cpu.HasField("quota") else None,
        bounded(cpu.period.value, 2**40) if cpu.HasField("period") else None,
        bounded(memory.limit.value, 2**60) if memory.HasField("limit") else None,
        tuple(HugepageLimit(limit.page_size, bounded(limit.limit, 2**60)) for limit in theirs.hugepage_limits),
    )


def pairs(theirs) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(theirs.items()))


def expected_sandbox(theirs) -> Sandbox:
    t = theirs
    return Sandbox(t.id, t.uid, t.name, t.namespace, pairs(t.labels), pairs(t.annotations), t.linux.cgroup_parent)


def expected_container(theirs) -> NriContainer:
    t = theirs
    return NriContainer(
        t.id,
        t.pod_sandbox_id,
        t.name or t.id,
        ContainerState(t.state),
        pairs(t.labels),
        pairs(t.annotations),
        t.pid or None,
        t.linux.cgroups_path,
        t.linux.oom_score_adj.value if t.linux.HasField("oom_score_adj") else None,
        expected_resources(t.linux.resources),
        tuple(sorted(one.partition("=")[0] for one in t.env)),
    )


@given(SANDBOXES, CONTAINERS, stub("LinuxResources"))
def test_calls_about_a_container_are_read(pod, container, resources):
    sandbox, ours = expected_sandbox(pod), expected_container(container)
    for method, event in (("CreateContainer", Event.CREATE_CONTAINER), ("StopContainer", Event.STOP_CONTAINER)):
        theirs = getattr(NRI, f"{method}Request")(pod=pod, container=container)
        assert read_call(method, theirs.SerializeToString()) == Call(event, sandbox, ours)
    theirs = NRI.UpdateContainerRequest(pod=pod, container=container, linux_resources=resources)
    call = Call(Event.UPDATE_CONTAINER, sandbox, ours, expected_resources(resources))
    assert read_call("UpdateContainer", theirs.SerializeToString()) == call


@given(SANDBOXES, stub("LinuxResources"))
def test_an_update_of_a_pod_is_read_and_answered(pod, resources):
    theirs = NRI.UpdatePodSandboxRequest(pod=pod, linux_resources=resources)
    call = Call(Event.UPDATE_POD_SANDBOX, expected_sandbox(pod))
    assert read_call("UpdatePodSandbox", theirs.SerializeToString()) == call
    NRI.UpdatePodSandboxResponse.FromString(calls.encode_answer(Event.UPDATE_POD_SANDBOX, Answer()))


@given(SANDBOXES, CONTAINERS | st.none(), st.sampled_from(Event))
def test_changes_of_state_are_read(pod, container, event):
    theirs = NRI.StateChangeEvent(pod=pod, container=container, event=event)
    ours = None if container is None else expected_container(container)
    assert read_call("StateChange", theirs.SerializeToString()) == Call(event, expected_sandbox(pod), ours)


@given(SANDBOXES, CONTAINERS)
def test_an_event_with_a_method_of_its_own_is_read_as_by_state_change_and_answered(pod, container):
    for number, method in OWN_METHODS.items():
        fields = {"pod": pod} if "Pod" in method else {"pod": pod, "container": container}
        theirs = getattr(NRI, f"{method}Request")(**fields).SerializeToString()
        told = NRI.StateChangeEvent(event=number, **fields).SerializeToString()
        assert read_call(method, theirs) == read_call("StateChange", told)
        getattr(NRI, f"{method}Response").FromString(calls.encode_answer(Event(number), Answer()))


@given(st.lists(SANDBOXES, max_size=3), st.lists(CONTAINERS, max_size=3), st.booleans())
def test_what_runs_is_read(pods, containers, more):
    theirs = NRI.SynchronizeRequest(pods=pods, containers=containers, more=more)
    part = Synchronized(tuple(map(expected_sandbox, pods)), tuple(map(expected_container, containers)))
    assert read_call("Synchronize", theirs.SerializeToString()) == Synchronize(part, more)


@given(stub("ConfigureRequest"))
def test_a_runtime_presents_itself(theirs):
    found = read_call("Configure", theirs.SerializeToString())
    assert isinstance(found, Configure)
    assert (found.runtime.name, found.runtime.version) == (theirs.runtime_name, theirs.runtime_version)
    assert found.runtime.request_timeout_ms == (theirs.request_timeout if theirs.request_timeout > 0 else 2000)
    registration = theirs.registration_timeout if theirs.registration_timeout > 0 else 5000
    assert found.runtime.registration_timeout_ms == registration


def test_a_shutdown_is_read_whatever_it_carries():
    assert read_call("Shutdown", b"") == Shutdown()
    assert read_call("Shutdown", NRI.KeyValue(key="reason").SerializeToString()) == Shutdown()


@pytest.mark.parametrize("method", ["ValidateContainerAdjustment", "", "configure"])
def test_other_methods_are_unknown(method):
    assert read_call(method, b"") is None


POD, CONTAINER = NRI.PodSandbox(id="p"), NRI.Container(id="c")
HOSTILE = {
    "no protobuf": ("CreateContainer", b"\xff\xff"),
    "truncated": ("Synchronize", NRI.SynchronizeRequest(pods=[POD]).SerializeToString()[:-1]),
    "no pod": ("CreateContainer", NRI.CreateContainerRequest(container=CONTAINER).SerializeToString()),
    "no container": ("UpdateContainer", NRI.UpdateContainerRequest(pod=POD).SerializeToString()),
    "a container without id": ("StopContainer", NRI.StopContainerRequest(pod=POD, container={}).SerializeToString()),
    "a pod without id": ("Synchronize", NRI.SynchronizeRequest(pods=[NRI.PodSandbox(uid="u")]).SerializeToString()),
    "no pod to run": ("RunPodSandbox", b""),
    "no container to start": ("StartContainer", NRI.StartContainerRequest(pod=POD).SerializeToString()),
    "no event": ("StateChange", NRI.StateChangeEvent(pod=POD).SerializeToString()),
    "an event that comes later": ("StateChange", NRI.StateChangeEvent(pod=POD, event=15).SerializeToString()),
    "a pod that is none": ("Synchronize", b"\x0a\x02\xff\xff"),
    "a million of nothing": ("Synchronize", b"\x12\x00" * (2 << 20)),
    "20,001 containers": ("Synchronize", NRI.SynchronizeRequest(containers=[CONTAINER] * 20_001).SerializeToString()),
}


@pytest.mark.parametrize(("method", "payload"), HOSTILE.values(), ids=HOSTILE)
def test_a_payload_that_is_not_its_methods_is_refused(method, payload):
    with pytest.raises(NriPayloadError):
        read_call(method, payload)


def test_a_state_that_comes_later_is_unknown_and_odd_ids_are_as_if_not_said():
    cpu = NRI.LinuxCPU(cpus="0-7:1/2", mems="all")
    odd = NRI.Container(id="c", state=9, linux={"resources": NRI.LinuxResources(cpu=cpu)})
    call = read_call("CreateContainer", NRI.CreateContainerRequest(pod=POD, container=odd).SerializeToString())
    assert isinstance(call, Call)
    assert call.container is not None
    assert (call.container.state, call.container.resources) == (ContainerState.UNKNOWN, NriResources())


# What a plugin answers.

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
MICROSECONDS, AMOUNT = st.integers(0, 2**40), st.integers(0, 2**60)
LIMITS = st.builds(HugepageLimit, TEXT, AMOUNT)
RESOURCES = st.builds(
    NriResources,
    cpus=st.none() | st.sets(st.integers(0, 1023), min_size=1).map(CpuSet.from_ids),
    mems=st.none() | st.sets(st.integers(0, 63), min_size=1).map(NumaSet.from_ids),
    cpu_shares=st.none() | MICROSECONDS,
    cpu_quota_us=st.none() | st.just(-1) | MICROSECONDS,
    cpu_period_us=st.none() | MICROSECONDS,
    memory_limit_bytes=st.none() | st.just(-1) | AMOUNT,
    hugepage_limits=st.lists(LIMITS, max_size=2).map(tuple),
)
UPDATES = st.lists(st.builds(Update, TEXT, RESOURCES, st.booleans()), max_size=3).map(tuple)


def updates_of(theirs) -> tuple[Update, ...]:
    return tuple(
        Update(one.container_id, expected_resources(one.linux.resources), one.ignore_failure) for one in theirs.update
    )


@given(st.none() | RESOURCES, UPDATES)
def test_answers_are_what_upstream_reads(adjustment, updates):
    created = NRI.CreateContainerResponse.FromString(
        calls.encode_answer(Event.CREATE_CONTAINER, Answer(adjustment, updates))
    )
    assert created.HasField("adjust") == (adjustment is not None)
    if adjustment is not None:
        assert expected_resources(created.adjust.linux.resources) == adjustment
    assert updates_of(created) == updates
    for event, response in (
        (Event.UPDATE_CONTAINER, NRI.UpdateContainerResponse),
        (Event.STOP_CONTAINER, NRI.StopContainerResponse),
    ):
        assert updates_of(response.FromString(calls.encode_answer(event, Answer(updates=updates)))) == updates
    synchronized = NRI.SynchronizeResponse.FromString(calls.encode_synchronized(updates))
    assert (updates_of(synchronized), synchronized.more) == (updates, False)


def test_what_devices_need_is_what_upstream_reads():
    access = DeviceAccess(
        variables=(("A", "1"),),
        files=(
            DeviceFile("/dev/nvme0", is_block=False, major=240, minor=0),
            DeviceFile("/dev/nvme0n1", is_block=True, major=259, minor=3),
        ),
        mounts=(DeviceMount("/lib/gpu", "/opt/gpu", is_read_only=True), DeviceMount("/run/gpu", "/run/gpu", False)),
        annotations=(("a", "1"),),
        cdi_devices=("example.com/gpu=3",),
    )
    for adjustment in (None, NriResources(cpus=CpuSet.of(1))):
        answer = calls.encode_answer(Event.CREATE_CONTAINER, Answer(adjustment, access=access))
        adjust = NRI.CreateContainerResponse.FromString(answer).adjust
        assert [(one.key, one.value) for one in adjust.env] == [("A", "1")]
        assert [(one.path, one.type, one.major, one.minor) for one in adjust.linux.devices] == [
            ("/dev/nvme0", "c", 240, 0),
            ("/dev/nvme0n1", "b", 259, 3),
        ]
        assert [(one.destination, one.type, one.source, list(one.options)) for one in adjust.mounts] == [
            ("/lib/gpu", "bind", "/opt/gpu", ["rbind", "rprivate", "ro"]),
            ("/run/gpu", "bind", "/run/gpu", ["rbind", "rprivate", "rw"]),
        ]
        assert dict(adjust.annotations) == {"a": "1"}
        assert [one.name for one in adjust.CDI_devices] == ["example.com/gpu=3"]
        assert adjust.linux.HasField("resources") == (adjustment is not None)


def test_what_is_not_said_is_not_spelt():
    (update,) = NRI.SynchronizeResponse.FromString(
        calls.encode_synchronized((Update("c", NriResources(cpu_quota_us=0)),))
    ).update
    assert not update.linux.resources.HasField("memory")
    assert [field.name for field, _ in update.linux.resources.cpu.ListFields()] == ["quota"]


def test_all_other_answers_are_empty():
    assert calls.encode_answer(Event.START_CONTAINER, Answer()) == b""
    assert NRI.SynchronizeResponse.FromString(calls.encode_request_for_more()) == NRI.SynchronizeResponse(more=True)


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        (Event.START_CONTAINER, Answer(updates=(Update("c", NriResources()),))),
        (Event.STOP_CONTAINER, Answer(adjustment=NriResources())),
        (Event.UPDATE_CONTAINER, Answer(access=DeviceAccess())),
        (Event.CREATE_CONTAINER, Answer(adjustment=NriResources(cpus=CpuSet()))),
        (Event.CREATE_CONTAINER, Answer(updates=(Update("c", NriResources(mems=NumaSet())),))),
    ],
)
def test_what_the_runtime_could_not_be_told_is_a_bug(event, answer):
    with pytest.raises(AssertionError):
        calls.encode_answer(event, answer)


@given(TEXT, st.integers(0, 99))
def test_a_plugin_registers_with_name_and_two_digits(name, index):
    theirs = NRI.RegisterPluginRequest.FromString(calls.encode_registration(name, index))
    assert (theirs.plugin_name, theirs.plugin_idx, theirs.NRI_version) == (name, f"{index:02}", "")


# Versions.


@pytest.mark.parametrize(
    ("name", "version", "told", "expected"),
    [
        ("containerd", "1.7.24~ds1", "", (0, 6, 0)),
        ("containerd", "v2.1.9", "", (0, 8, 0)),
        ("containerd", "2.2.0-rc.1", "", (0, 10, 0)),
        ("containerd", "2.2.1", "", (0, 10, 0)),
        ("containerd", "2.2.2", "", (0, 11, 0)),
        ("containerd", "3.0.0", "", (0, 12, 0)),
        ("containerd", "2.1.9", "v0.11.3", (0, 11, 3)),
        ("containerd", "1.7.24", "0.10.0", (0, 10, 0)),
        ("containerd", "2.1.9", "(devel)", (0, 8, 0)),
        ("containerd", "", "", (0, 6, 0)),
        ("containerd", "99999999999999999999.0", "", (0, 6, 0)),
        ("cri-o", "1.33.1", "", (0, 6, 0)),
        ("cri-o", "1.34.0", "", (0, 10, 0)),
        ("cri-o", "1.36.2", "", (0, 11, 0)),
        ("something", "9.9.9", "", (0, 6, 0)),
    ],
)
def test_the_version_is_told_or_follows_from_the_runtimes(name, version, told, expected):
    assert nri_version(name, version, told) == expected


@given(TEXT, TEXT, TEXT)
def test_any_text_has_a_version(name, version, told):
    assert len(nri_version(name, version, told)) == 3


@given(st.sets(st.sampled_from(Event)), st.sampled_from([(0, 6, 0), (0, 8, 0), (0, 9, 9), (0, 10, 0), (0, 12, 1)]))
def test_a_subscription_has_no_bit_that_the_runtime_does_not_know(events, version):
    known = {event for event in Event if event <= (14 if version >= (0, 10, 0) else 11)}
    runtime = Runtime("containerd", "", version, 5000, 2000)
    if not events & known:
        with pytest.raises(AssertionError):
            event_mask(events, runtime)
        return
    mask = event_mask(events, runtime)
    assert {event for event in Event if mask >> (event - 1) & 1} == events & known
    assert NRI.ConfigureResponse.FromString(calls.encode_subscription(events, runtime)) == NRI.ConfigureResponse(
        events=mask
    )


# ttrpc.


@given(TEXT, TEXT, st.binary(max_size=50), INT64, st.dictionaries(TEXT, TEXT, max_size=2))
def test_a_request_is_read(service, method, payload, timeout_ns, metadata):
    pairs_ = [{"key": key, "value": value} for key, value in metadata.items()]
    theirs = TTRPC.Request(service=service, method=method, payload=payload, timeout_nano=timeout_ns, metadata=pairs_)
    frame = TtrpcFrame(1, TtrpcFrameType.REQUEST, 0, theirs.SerializeToString())
    assert ttrpc.read_request(frame) == TtrpcRequest(service, method, payload, max(0, timeout_ns))


@given(st.binary(max_size=50), st.integers(0, 20), TEXT)
def test_a_response_is_read_and_spelt(payload, code, message):
    status = None if code == TtrpcCode.OK else TTRPC.Status(code=code, message=message)
    theirs = TTRPC.Response(status=status, payload=payload)
    ours = TtrpcResponse(payload, code, message if code else "")
    assert ttrpc.read_response(TtrpcFrame(1, TtrpcFrameType.RESPONSE, 0, theirs.SerializeToString())) == ours
    assert TTRPC.Response.FromString(ttrpc.encode_response(1, ours)[ttrpc.HEADER_BYTES :]) == theirs


@given(TEXT, TEXT, st.binary(max_size=50), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 32) - 1))
def test_a_request_is_spelt(service, method, payload, timeout_ns, stream):
    spelt = ttrpc.encode_request(stream, TtrpcRequest(service, method, payload, timeout_ns))
    header = ttrpc.read_header(spelt)
    assert (header.length, header.stream, header.kind, header.flags) == (len(spelt) - 10, stream, 1, 0)
    theirs = TTRPC.Request(service=service, method=method, payload=payload, timeout_nano=timeout_ns)
    assert TTRPC.Request.FromString(spelt[10:]) == theirs


@pytest.mark.parametrize("read", [ttrpc.read_request, ttrpc.read_response])
def test_what_is_neither_request_nor_response_is_refused(read):
    with pytest.raises(TtrpcError):
        read(TtrpcFrame(1, TtrpcFrameType.REQUEST, 0, b"\xff"))
