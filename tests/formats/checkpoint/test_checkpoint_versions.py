"""`nodeagent checkpoint`: every version is recognised, judged, shown, and said in every other that can hold it."""

import io
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.cli.main import main
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaMask, NumaSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.state import NodeState, Origin
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings, MemoryNode, MemoryTable
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.formats.checkpoint.checkpoint_versions import (
    WRITABLE,
    CheckpointError,
    checkpoint_document,
    convert_checkpoint,
    read_checkpoint,
)
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state, encode_cpu_state, encode_cpu_state_1
from nodeagent.formats.checkpoint.device_checkpoint import DeviceCheckpointError, decode_devices, encode_devices
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state, encode_memory_state
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state, policies_of
from tests.formats.checkpoint import test_checkpoints as samples
from tests.formats.checkpoint.test_device_checkpoint import NOWHERE as OF_A_KUBELET
from tests.formats.checkpoint.test_node_state import CONTENT
from tests.support import inspected_nodes as inspected, json_schema
from tests.support.pods import app, pod
from tests.support.world import SMALL, empty_state, node

IDS = samples.INITIAL
CPU_4 = samples.with_data(
    samples.VERSION_2,
    '{"policyName":"static","defaultCpuSet":"1-2","entries":{},"podEntries":{"pod2":{"cpuSet":"7-9"}}}',
)
EMPTY = node(SMALL)
OWN = encode_state(empty_state(EMPTY), {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"})
NIC, SLICE = "example.com/nic", "example.com/slice"
CARDS = tuple(PoolDevice(f"0000:8{n}:00.0", NumaMask(1 << n)) for n in range(3))
DEVICES = encode_devices(
    Promises(
        pods=PodMap()
        .put("pod1", NOTHING.having(DeviceHoldings(devices=(("app", (CARDS[0].held(NIC), CARDS[2].held(NIC))),))))
        .put(
            "pod2",
            NOTHING.having(
                DeviceHoldings(
                    devices=(
                        ("app", (HeldDevice(SLICE, "gpu0::1", NumaSet.from_ids((0, 1))),)),
                        ("init", (HeldDevice("example.com/tegra", "tegra"),)),
                    ),
                    answers=(("app", ((SLICE, b"secret"),)),),
                )
            ),
        )
    ),
    (DevicePool(NIC, CARDS), DevicePool(SLICE, ())),
).encode()
FILES: dict[str, tuple[bytes, str]] = {
    "cpu 1": (samples.VERSION_1.encode(), "cpu-v1"),
    "cpu 1, empty": (encode_cpu_state_1("none", "", {}).encode(), "cpu-v1"),
    "cpu 2": (samples.VERSION_2.encode(), "cpu-v2"),
    "cpu 2, empty": (encode_cpu_state("static", Promises(), pod_level=False).encode(), "cpu-v2"),
    "cpu 2, between releases": (samples.BETWEEN_RELEASES.encode(), "cpu-v2"),
    "cpu 3": (samples.VERSION_3.encode(), "cpu-v3"),
    "cpu 3, empty": (encode_cpu_state("static", Promises(), pod_level=True).encode(), "cpu-v3"),
    "cpu 4": (CPU_4.encode(), "cpu-v4"),
    "memory 1": (encode_memory_state("Static", samples.ONE_GIB, pod_level=False).encode(), "memory-v1"),
    "memory 1, of 1.36.0": (samples.LEGACY.replace("4236770233", "467305784").encode(), "memory-v1"),
    "memory 2": (encode_memory_state("Static", samples.POD_GIB, pod_level=True).encode(), "memory-v2"),
    "memory 2, empty": (encode_memory_state("None", Promises(), pod_level=True).encode(), "memory-v2"),
    "memory 3": (samples.NEWER.encode(), "memory-v3"),
    "devices": (DEVICES, "devices-v2"),
    "devices, of a kubelet": (OF_A_KUBELET.encode(), "devices-v2"),
    "devices, empty": (encode_devices(Promises()).encode(), "devices-v2"),
    "devices, of a later kubelet": (DEVICES[:-1] + b',"BootID":"6c2f"}', "devices-v2"),
    "nodeagent": (OWN, "nodeagent-v1"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_version_is_recognised_and_whole(name: str) -> None:
    content, version = FILES[name]
    found = read_checkpoint(content)
    assert (found.version, found.problem) == (version, None)
    document = checkpoint_document(found)
    assert json.loads(json.dumps(document)) == document
    assert (document["format"], document["whole"]) == (version, True)
    json_schema.check(document, "checkpoint")


WAYS = [
    *(("cpu 1", to) for to in ("cpu-v1", "cpu-v2", "cpu-v3")),
    *(("cpu 2", to) for to in ("cpu-v2", "cpu-v3")),
    ("cpu 3", "cpu-v3"),
    ("cpu 4", "cpu-v3"),
    *(("memory 1", to) for to in ("memory-v1", "memory-v2")),
    ("memory 2", "memory-v2"),
    ("memory 3", "memory-v2"),
    *(("nodeagent", to) for to in WRITABLE),
]


@pytest.mark.parametrize(("name", "to"), WAYS, ids=[f"{name} to {to}" for name, to in WAYS])
def test_there_and_back_is_the_same_to_the_byte(name: str, to: str) -> None:
    content, version = FILES[name]
    there = convert_checkpoint(read_checkpoint(content), to, IDS, lossy=False)
    found = read_checkpoint(there)
    assert (found.version, found.problem) == (to, None)
    assert convert_checkpoint(found, to, IDS, lossy=False) == there
    if version in WRITABLE:
        assert convert_checkpoint(found, version, IDS, lossy=False) == content


def test_from_version_2_to_1_needs_every_id() -> None:
    by_pod = convert_checkpoint(read_checkpoint(samples.VERSION_1.encode()), "cpu-v2", IDS, lossy=False)
    assert convert_checkpoint(read_checkpoint(by_pod), "cpu-v1", IDS, lossy=False) == samples.VERSION_1.encode()
    with pytest.raises(CheckpointError, match="the ID of container one of pod pod-a is unknown") as caught:
        convert_checkpoint(read_checkpoint(by_pod), "cpu-v1", {}, lossy=False)
    assert "--containers FILE" in (caught.value.hint or "")


def test_two_ids_are_not_one_container() -> None:
    same = dict.fromkeys(IDS, ("pod", "app"))
    assert len(same) > 1
    with pytest.raises(CheckpointError, match="container app of pod pod has two IDs"):
        convert_checkpoint(read_checkpoint(samples.VERSION_1.encode()), "cpu-v2", same, lossy=False)


@pytest.mark.parametrize(("name", "to"), [("cpu 3", "cpu-v2"), ("memory 2", "memory-v1")])
def test_what_cannot_be_said_is_left_out_only_if_told_so(name: str, to: str) -> None:
    checkpoint = read_checkpoint(FILES[name][0])
    with pytest.raises(CheckpointError, match="pod-level resources") as caught:
        convert_checkpoint(checkpoint, to, {}, lossy=False)
    assert "--lossy" in (caught.value.hint or "")
    found = read_checkpoint(convert_checkpoint(checkpoint, to, {}, lossy=True))
    assert (found.version, found.problem) == (to, None)
    assert all(
        p.of(CpuHoldings).pod_cpus is None and p.of(MemoryHoldings).pod_memory is None for _, p in found.promises.pods
    )
    assert dict(checkpoint.promises.pods)


def test_a_node_with_more_promised_than_there_is() -> None:
    table = MemoryTable(10, 0, 10, 15, -5)
    overdrawn = MemoryNode(0, 1, NumaSet.of(0), (("memory", table),))
    own = read_checkpoint(OWN)
    assert own.saved is not None
    state = Promises().having(CpuBooks(default_set(own.promises)), MemoryBooks((overdrawn,)))
    content = encode_state(
        type(own.saved.state)(state), {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}
    )
    with pytest.raises(CheckpointError, match="more memory is allocated"):
        convert_checkpoint(read_checkpoint(content), "memory-v1", {}, lossy=False)
    assert read_checkpoint(convert_checkpoint(read_checkpoint(content), "memory-v1", {}, lossy=True)).problem is None


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "cut": (samples.VERSION_2[:40].encode(), "kubelet cannot read it: unexpected end of JSON input"),
    "no text": (b'{"policyName":"\xff"}', "byte 15 is 0xff"),
    "something else": (b'{"a": 1}', "defaultCpuSet, machineState, PodDeviceEntries"),
    "no object": (b"[1]", "defaultCpuSet, machineState, PodDeviceEntries"),
    "no set": (samples.VERSION_2.replace("4-6", "6-4").encode(), "pod pod, container container1: '6-4' is not a set of CPUs such as 0-3,8"),
    "no node": (samples.ODD.encode(), "null"),
    "data damaged": (CPU_4.replace("7-9\\", "7-8\\").encode(), "could not load v4 checkpoint: checkpoint is corrupted"),
    "memory data damaged": (samples.NEWER.replace("2084914556", "1").encode(), "could not load v3 checkpoint"),
    "devices, cut": (DEVICES[:-20], "kubelet cannot read it: unexpected end of JSON input"),
    "devices of no node": (DEVICES.replace(b'"-1"', b'"x"'), "kubelet cannot read it"),
    "no base64": (DEVICES.replace(b"c2VjcmV0", b"c2VjcmV"), "kubelet cannot read it: illegal base64 data"),
    "own, cut": (OWN[:-20], "the checksum does not match"),
    "own, newer": (OWN.replace(b'"version":1', b'"version":7', 1), "version 7 was written by a later nodeagent"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_what_says_nothing_is_an_error_with_a_reason(name: str) -> None:
    content, reason = DAMAGED[name]
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(content)
    assert reason in caught.value.message
    assert caught.value.hint


EDITED = {
    "devices": lambda text: text.replace("gpu0::1", "gpu0::2"),
    "devices, empty": lambda text: text.rpartition(":")[0] + ":0}",
    "cpu 2": lambda text: text.replace("4-6", "4-5"),
    "cpu 3": lambda text: text.replace("7-9", "7-8"),
    "memory 1": lambda text: text.replace('"size":1073741824', '"size":1073741823'),
    "memory 2": lambda text: text.replace('"size":1073741824', '"size":1073741823'),
    "nodeagent": lambda text: text.replace('"generation":0', '"generation":1'),
}


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_file_is_shown_and_not_converted(name: str) -> None:
    content, version = FILES[name]
    edited = EDITED[name](content.decode()).encode()
    assert edited != content
    found = read_checkpoint(edited)
    assert found.version == version
    assert found.problem is not None
    assert "checksum" in found.problem
    with pytest.raises(CheckpointError, match="checksum"):
        convert_checkpoint(found, "memory-v1" if version.startswith("memory") else "cpu-v3", {}, lossy=True)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"policyName":"None","checksum":4132376582}', "memory-v1"),
        ('{"policyName":"Static","entries":{"ghost":{}},"checksum":1475028405}', "memory-v1"),
        ('{"policyName":"Static","entries":{"ghost":{}},"checksum":1646982420}', "memory-v2"),
        ('{"policyName":"None","machineState":{},"entries":{"ghost":{}},"checksum":3231621568}', "memory-v1"),
        ('{"policyName":"none","checksum":1353318690}', "cpu-v2"),
        ('{"policyName":"static","defaultCpuSet":"0-3","entries":{"ghost":{}},"checksum":3967522471}', "cpu-v2"),
    ],
)
def test_what_kubelet_reads_as_empty_is_whole(text: str, version: str) -> None:
    """A field that isn't there, and a pod without containers; kubelet knows the files by their names."""
    found = read_checkpoint(text.encode())
    assert (found.version, found.problem) == (version, None)
    assert all(held.is_nothing for _, held in found.promises.pods)
    record = (
        decode_memory_state(text, pod_level=version[-1] == "2")
        if version.startswith("memory")
        else decode_cpu_state(text, pod_level=False, initial={})
    )
    assert not isinstance(record, Unreadable)


def test_kubelet_takes_a_file_without_checksum_unseen_and_that_is_said() -> None:
    found = read_checkpoint(samples.VERSION_2.replace("964019483", "0").encode())
    assert (found.version, found.problem) == ("cpu-v2", None)
    assert found.note is not None
    assert "kubelet accepts it unchecked" in found.note
    strict = read_checkpoint(samples.VERSION_3.rpartition(":")[0].encode() + b":0}")
    assert strict.problem is not None, "version 3 must have one"


# The command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*words: str) -> tuple[int, str, str]:
        status = main(["checkpoint", *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return command


def test_verify_says_what_it_is_in_one_line(tmp_path: Path, run: Run) -> None:
    for name, (content, version) in FILES.items():
        file = tmp_path / "state"
        file.write_bytes(content)
        status, out, err = run("verify", str(file))
        assert (status, err) == (0, ""), name
        assert out.startswith(f"{version}, whole: ")
    assert run("verify", str(tmp_path / "none"))[0] == 1
    file.write_bytes(OWN.replace(b'"generation":0', b'"generation":1'))
    status, out, err = run("verify", str(file))
    assert (status, err) == (2, "")
    assert "DAMAGED" in out


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_show_has_everything_as_a_document(tmp_path: Path, run: Run, form: str) -> None:
    file = tmp_path / "state"
    file.write_bytes(FILES["memory 2"][0])
    status, out, _ = run("show", str(file), "-o", form)
    document = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert status == 0
    assert document["pods"]["uid-1"]["podMemory"] == [{"bytes": 2**30, "nodes": "0", "resource": "memory"}]
    assert document["machineState"][0]["resources"]["memory"]["total"] == 8 * 2**30
    status, out, _ = run("verify", str(file), "-o", form)
    verdict = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert verdict.keys() == set(json_schema.schema("checkpoint")["required"])
    for answer in (document, verdict):
        json_schema.check(answer, "checkpoint")


def test_a_state_with_pods_in_every_phase_is_shown_as_its_schema_says(tmp_path: Path, run: Run) -> None:
    world = inspected.everything()[0]
    for state in (world.state, decode_state(CONTENT).state, with_a_refusal(world.state)):
        file = tmp_path / "state"
        file.write_bytes(encode_state(state, policies_of(world.config.placement)))
        status, out, _ = run("show", str(file), "-o", "json")
        document = json.loads(out)
        assert status == 0
        json_schema.check(document, "checkpoint")
        assert len(document["state"]["entries"]) == len(state.entries)


def test_a_damaged_file_as_a_document_says_what_is_wrong(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "state"
    file.write_bytes(OWN.replace(b'"generation":0', b'"generation":1'))
    for action in ("verify", "show"):
        status, out, err = run(action, str(file), "-o", "json")
        document = json.loads(out)
        json_schema.check(document, "checkpoint")
        assert (status, err, document["whole"]) == (2, "", False)
        assert "checksum" in document["problem"]


def test_show_is_legible(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "state"
    file.write_bytes(FILES["cpu 3"][0])
    assert run("show", str(file))[1].splitlines() == [
        "cpu-v3, whole: cpuManagerPolicy static, 2 pods, 2 containers",
        "default set: 1-2",
        "POD CONTAINER      CPUS  MEMORY",
        "pod1 container1    5-6",
        "pod1 container2    3-4",
        "pod2 (as a whole)  7-9",
    ]
    file.write_bytes(FILES["memory 1"][0])
    assert run("show", str(file))[1].splitlines()[1:] == [
        "NUMA node 0, memory: 8Gi, free 6Gi, allocated 1Gi, reserved for the system 1Gi",
        "POD CONTAINER  CPUS  MEMORY",
        "uid-1 app            memory 1Gi on 0",
    ]
    file.write_bytes(
        encode_state(with_a_refusal(empty_state(EMPTY)), {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"})
    )
    assert "  default/a (uid-a): Failed, a.yaml" in run("show", str(file))[1].splitlines()


def test_show_says_whose_each_device_is(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_bytes(DEVICES)
    assert run("show", str(file))[1].splitlines() == [
        "devices-v2, whole: 2 pods, 3 containers, 4 devices",
        "registered example.com/nic: 0000:80:00.0, 0000:81:00.0, 0000:82:00.0",
        "registered example.com/slice: none",
        "POD CONTAINER  DEVICES",
        "pod1 app       example.com/nic 0000:80:00.0 on 0, example.com/nic 0000:82:00.0 on 2",
        "pod2 app       example.com/slice gpu0::1 on 0-1",
        "pod2 init      example.com/tegra tegra",
    ]
    status, out, _ = run("show", str(file), "-o", "json")
    document = json.loads(out)
    json_schema.check(document, "checkpoint")
    assert (status, document["format"]) == (0, "devices-v2")
    assert document["registeredDevices"] == {NIC: [card.id for card in CARDS], SLICE: []}
    assert document["pods"]["pod2"]["containers"]["app"] == {
        "devices": [{"id": "gpu0::1", "nodes": "0-1", "resource": SLICE}]
    }
    assert "secret" not in out
    assert "c2VjcmV0" not in out, "what a plugin has answered may hold secrets"


def test_our_own_file_shows_devices_too(tmp_path: Path, run: Run) -> None:
    state = empty_state(EMPTY)
    pods: PodMap[PodPromises] = PodMap()
    own = NOTHING.having(
        CpuHoldings(cpus=(("app", CpuSet.of(1)),)), DeviceHoldings(devices=(("app", (CARDS[1].held(NIC),)),))
    )
    file = tmp_path / "state"
    policies = {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"}
    file.write_bytes(encode_state(replace(state, promises=replace(state.promises, pods=pods.put("p", own))), policies))
    assert run("show", str(file))[1].splitlines()[2:4] == [
        "POD CONTAINER  CPUS  MEMORY  DEVICES",
        "p app          1             example.com/nic 0000:81:00.0 on 1",
    ]


def test_who_has_devices_is_no_other_file(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_bytes(DEVICES)
    status, out, err = run("convert", str(file), "--to", "cpu-v3")
    assert (status, out) == (1, "")
    assert "a file of version devices-v2 has no content for cpu-v3" in err


def with_a_refusal(state: NodeState) -> NodeState:
    entry = new_entry(Manifest(pod("a", app("app", "1")), Origin("a.yaml")), 5, pod_level_resources=True)
    return replace(state, entries=(replace(entry, refusal=Waiting("OutOfcpu", "no", 5), containers=()),))


def test_convert_writes_to_the_byte(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, ids = tmp_path / "state", tmp_path / "out", tmp_path / "ids.json"
    source.write_text(samples.VERSION_1)
    ids.write_text(json.dumps(IDS))
    words = ["checkpoint", "convert", str(source), "--containers", str(ids)]
    assert main([*words, "--to", "cpu-v2", "--out", str(out)]) == 0
    assert read_checkpoint(out.read_bytes()).version == "cpu-v2"
    assert main(["checkpoint", "convert", str(out), "--to", "cpu-v1", "--containers", str(ids)]) == 0
    assert capfdbinary.readouterr().out == samples.VERSION_1.encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ids.read_bytes())))
    assert main(["checkpoint", "convert", str(out), "--to", "cpu-v1", "--containers", "-"]) == 0
    assert capfdbinary.readouterr().out == samples.VERSION_1.encode()


def test_convert_replaces_nothing_that_is_there(tmp_path: Path, run: Run) -> None:
    source, victim, link, fifo = (tmp_path / name for name in ("state", "victim", "link", "fifo"))
    source.write_text(samples.VERSION_2)
    victim.write_bytes(b"precious")
    link.symlink_to(victim)
    os.mkfifo(fifo)
    for out, message in (
        (source, "the file exists already"),
        (victim, "the file exists already"),
        (link, "it is a directory, link, device, FIFO or socket"),
        (fifo, "it is a directory, link, device, FIFO or socket"),
    ):
        before = out.lstat().st_ino
        status, said, err = run("convert", str(source), "--to", "cpu-v3", "--out", str(out))
        assert (status, said) == (1, "")
        assert f"cannot write {out}: {message}" in err
        assert "--out" in err.partition("\nhint: ")[2]
        assert out.lstat().st_ino == before
    assert victim.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link", "state", "victim"]


def test_what_is_converted_is_its_owners_alone(tmp_path: Path, run: Run) -> None:
    source, out = tmp_path / "state", tmp_path / "out"
    source.write_text(samples.VERSION_2)
    before = os.umask(0)
    try:
        assert run("convert", str(source), "--to", "cpu-v3", "--out", str(out))[0] == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_errors_name_the_file_the_value_and_the_next_step(tmp_path: Path, run: Run) -> None:
    source, ids = tmp_path / "state", tmp_path / "ids"
    source.write_text(samples.VERSION_1)
    ids.write_text('{"containerID1": "pod"}')
    cases = [
        (("convert", str(source), "--to", "cpu-v2"), f"{source}: the pod and container of containerID1 are unknown"),
        (("convert", str(source), "--to", "memory-v1"), f"{source}: a file of version cpu-v1 has no content for memory-v1"),
        (("convert", str(source), "--to", "cpu-v2", "--containers", str(ids)), f"{ids}: [containerID1]: must be a list"),
        (("show", str(tmp_path / "none")), f"{tmp_path}/none: there is no such file"),
        (("show", str(tmp_path)), f"cannot read {tmp_path}: Is a directory"),
    ]  # fmt: skip
    for words, message in cases:
        status, out, err = run(*words)
        assert (status, out) == (1, "")
        assert message in err
        assert "\nhint: " in err


def test_what_cannot_be_read_at_all_is_not_sent_to_the_command_that_failed(tmp_path: Path, run: Run) -> None:
    source = tmp_path / "state"
    for content in (b"\xff", b"nonsense", b'{"defaultCpuSet": "x"}'):
        source.write_bytes(content)
        status, _, err = run("show", str(source))
        assert status == 1
        assert "\nhint: " in err
        assert "checkpoint show" not in err


@pytest.mark.parametrize(
    ("text", "version", "migrated"),
    [
        (
            (
                '{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"a.com/b","DeviceIDs":["d"],"AllocResp":""}],'
                '"RegisteredDevices":{"a.com/b":["d"]}},"Checksum":123}'
            ),
            "before 1.20",
            True,
        ),
        ('{"PodDeviceEntries":[],"RegisteredDevices":{}}', "before 1.11", False),
    ],
)
def test_devices_of_an_old_kubelet_are_known_by_their_format(text: str, version: str, migrated: bool) -> None:
    with pytest.raises(CheckpointError, match=f"it has the format of kubelet {version}") as caught:
        read_checkpoint(text.encode())
    assert ("kubelet 1.20 to 1.29 migrates" in str(caught.value.hint)) is migrated
    with pytest.raises(DeviceCheckpointError, match=version):
        decode_devices(text)
