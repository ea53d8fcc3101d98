"""`nodeagent checkpoint verify --state`: kubelet's files say what the node's state says, or where they don't is shown."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.cli.main import main
from nodeagent.core.model.device_pools import PoolDevice
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaMask, NumaSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises, UnrecoveredPod
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, with_default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import (
    Block,
    MemoryBooks,
    MemoryHoldings,
    MemoryNode,
    MemoryTable,
    memory_accounts,
    with_memory_accounts,
)
from nodeagent.formats.checkpoint.checkpoint_versions import read_checkpoint
from nodeagent.formats.checkpoint.cpu_checkpoint import encode_cpu_state, encode_cpu_state_1
from nodeagent.formats.checkpoint.device_checkpoint import encode_devices
from nodeagent.formats.checkpoint.memory_checkpoint import encode_memory_state
from nodeagent.formats.checkpoint.node_state import encode_state
from tests.daemon.test_damage import lives
from tests.support import json_schema
from tests.support.world import SMALL, empty_state, node

GIB = 1 << 30
NIC = "example.com/nic"
POLICIES = {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}
CARD = PoolDevice("0000:81:00.0", NumaMask(0b10))
HELD = NOTHING.having(
    CpuHoldings(cpus=(("app", CpuSet.of(1, 2)),)),
    MemoryHoldings(memory=(("app", (Block(NumaSet.of(0), "memory", GIB),)),)),
    DeviceHoldings(
        devices=(("app", (CARD.held(NIC), HeldDevice("gpu.example.com", "g0", claim="default/g"))),),
        answers=(("app", ((NIC, b"secret"),)),),
    ),
)
WHOLE = NOTHING.having(
    CpuHoldings(pod_cpus=CpuSet.of(3)), MemoryHoldings(pod_memory=(Block(NumaSet.of(0), "memory", GIB),))
)
TABLE = MemoryTable(8 * GIB, GIB, 7 * GIB, 2 * GIB, 5 * GIB)
PROMISES = Promises(pods=PodMap[PodPromises]().put("p", HELD).put("whole", WHOLE)).having(
    CpuBooks(default=CpuSet.of(0)), MemoryBooks(nodes=(MemoryNode(0, 2, NumaSet.of(0), (("memory", TABLE),)),))
)

WRITTEN: dict[str, Callable[[Promises], str]] = {
    "cpu-v2": lambda promises: encode_cpu_state("static", promises, pod_level=False),
    "cpu-v3": lambda promises: encode_cpu_state("static", promises, pod_level=True),
    "memory-v1": lambda promises: encode_memory_state("Static", promises, pod_level=False),
    "memory-v2": lambda promises: encode_memory_state("Static", promises, pod_level=True),
    "devices-v2": encode_devices,
}

Verify = Callable[[str], tuple[int, list[str], list[dict[str, str]]]]


@pytest.fixture
def verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verify:
    state = tmp_path / "nodeagent_state"
    state.write_bytes(encode_state(replace(empty_state(node(SMALL)), promises=PROMISES), POLICIES))

    def run(content: str) -> tuple[int, list[str], list[dict[str, str]]]:
        file = tmp_path / "file"
        file.write_text(content)
        words = ["checkpoint", "verify", str(file), "--state", str(state)]
        status = main(words)
        lines = capsys.readouterr().out.splitlines()
        assert main([*words, "-o", "json"]) == status
        document = json.loads(capsys.readouterr().out)
        json_schema.check(document, "checkpoint")
        return status, lines[1:], document["differences"]

    return run


def with_pod(uid: str, held: PodPromises) -> Promises:
    return replace(PROMISES, pods=PROMISES.pods.put(uid, held))


@pytest.mark.parametrize("version", WRITTEN)
def test_what_the_agent_would_write_agrees(verify: Verify, version: str) -> None:
    content = WRITTEN[version](PROMISES)
    assert read_checkpoint(content.encode()).version == version
    assert verify(content) == (0, ["  agrees with the node's state"], [])


def test_an_agents_own_files_agree_with_its_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lives(tmp_path)
    for name in ("cpu_manager_state", "memory_manager_state"):
        assert main(["checkpoint", "verify", str(tmp_path / name), "--state", str(tmp_path / "nodeagent_state")]) == 0
        assert "agrees with the node's state" in capsys.readouterr().out


OTHER_CARD = HELD.having(
    replace(HELD.of(DeviceHoldings), devices=(("app", (replace(CARD, id="0000:82:00.0").held(NIC),)),))
)
OTHER_ANSWER = HELD.having(replace(HELD.of(DeviceHoldings), answers=(("app", ((NIC, b"tosser"),)),)))
OTHER_BLOCK = HELD.having(
    replace(HELD.of(MemoryHoldings), memory=(("app", (Block(NumaSet.of(0), "memory", GIB // 2),)),))
)
DIFFERENT: dict[str, tuple[str, Promises, list[str]]] = {
    "other CPUs": (
        "cpu-v2",
        with_pod("p", HELD.having(replace(HELD.of(CpuHoldings), cpus=(("app", CpuSet.of(2)),)))),
        ["pod p container app, cpus: 2 here, 1-2 in the state"],
    ),
    "another default set": (
        "cpu-v2",
        with_default_set(PROMISES, CpuSet.of(0, 5)),
        ["defaultCpuSet: 0,5 here, 0 in the state"],
    ),
    "a pod that nobody knows": (
        "cpu-v2",
        with_pod("ghost", HELD),
        ["pod ghost container app, cpus: 1-2 here, nothing in the state"],
    ),
    "no pod as a whole": (
        "cpu-v3",
        with_pod("whole", NOTHING),
        ["pod whole, cpus: nothing here, 3 in the state"],
    ),
    "other memory": (
        "memory-v2",
        with_pod("p", OTHER_BLOCK),
        ["pod p container app, memory: memory 536870912 on 0 here, memory 1073741824 on 0 in the state"],
    ),
    "another node": (
        "memory-v1",
        with_memory_accounts(PROMISES, (replace(memory_accounts(PROMISES)[0], assignments=1),)),
        ["NUMA node 0: 1 assignments, with 0 here, 2 assignments, with 0 in the state"],
    ),
    "another device": (
        "devices-v2",
        with_pod("p", OTHER_CARD),
        ["pod p container app, example.com/nic: 0000:82:00.0 on 1 here, 0000:81:00.0 on 1 in the state"],
    ),
    "nobody's device": (
        "devices-v2",
        Promises(),
        [
            "pod p container app, answer of example.com/nic's plugin: nothing here, 6 bytes in the state",
            "pod p container app, example.com/nic: nothing here, 0000:81:00.0 on 1 in the state",
        ],
    ),
    "another answer": (
        "devices-v2",
        with_pod("p", OTHER_ANSWER),
        ["pod p container app, answer of example.com/nic's plugin: 6 bytes here, 6 bytes in the state"],
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_not_the_same_is_shown(verify: Verify, name: str) -> None:
    version, promises, expected = DIFFERENT[name]
    status, lines, found = verify(WRITTEN[version](promises))
    assert (status, lines[0]) == (2, "  DIFFERS from the node's state:")
    assert [line.strip() for line in lines[1:]] == expected
    assert len(found) == len(expected)


def test_what_lost_pods_have_is_on_record_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = UnrecoveredPod("uid-lost", NOTHING.having(DeviceHoldings(devices=(("app", (CARD.held(NIC),)),))))
    promises = replace(PROMISES, unrecovered=(lost,))
    state, file = tmp_path / "nodeagent_state", tmp_path / "kubelet_internal_checkpoint"
    state.write_bytes(encode_state(replace(empty_state(node(SMALL)), promises=promises), POLICIES))
    file.write_text(encode_devices(promises))
    assert main(["checkpoint", "verify", str(file), "--state", str(state)]) == 0
    assert "agrees with the node's state" in capsys.readouterr().out
    assert main(["checkpoint", "show", str(state)]) == 0
    assert "uid-lost (lost) app" in capsys.readouterr().out


def test_another_policy_is_a_difference(verify: Verify) -> None:
    status, lines, _ = verify(encode_cpu_state("none", PROMISES, pod_level=False))
    assert (status, lines[1].strip()) == (2, "cpuManagerPolicy: none here, static in the state")


def test_what_an_older_version_cannot_say_is_no_difference(verify: Verify) -> None:
    for version in ("cpu-v2", "memory-v1"):
        assert verify(WRITTEN[version](with_pod("whole", NOTHING)))[0] == 0


def test_a_damaged_file_is_compared_and_stays_damaged(verify: Verify) -> None:
    status, lines, found = verify(encode_devices(PROMISES).replace("0000:81", "0000:82"))
    assert "the checksum is" in lines[0]
    assert (status, len(found)) == (2, 1)


@pytest.mark.parametrize(
    ("file", "state", "message"),
    [
        ("cpu 1", "own", "{}/file: version cpu-v1 identifies containers only by ID"),
        ("own", "own", "{}/file: this file is the node's own state"),
        ("cpu 2", "cpu 2", "{}/state: it is a file of version cpu-v2, not the node's state"),
        ("cpu 2", "damaged", "{}/state: the checksum does not match"),
        ("cpu 2", "none", "{}/state: there is no such file"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, state: str, message: str
) -> None:
    own = encode_state(replace(empty_state(node(SMALL)), promises=PROMISES), POLICIES)
    contents = {
        "own": own,
        "damaged": own.replace(b'"generation":0', b'"generation":1'),
        "cpu 1": encode_cpu_state_1("static", "0", {"id": "1"}).encode(),
        "cpu 2": WRITTEN["cpu-v2"](PROMISES).encode(),
    }
    (tmp_path / "file").write_bytes(contents[file])
    if state in contents:
        (tmp_path / "state").write_bytes(contents[state])
    assert main(["checkpoint", "verify", str(tmp_path / "file"), "--state", str(tmp_path / "state")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert message.format(tmp_path) in said.err
    assert "\nhint: " in said.err
