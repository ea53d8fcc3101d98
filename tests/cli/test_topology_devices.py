"""`nodeagent topology --devices`: what is beside the CPUs of this node, of a copied one, and of a captured one."""

import json
from html import unescape
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, Promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import CpuBooks
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.formats.checkpoint.node_state import encode_state
from tests.support import json_schema
from tests.support.machine_tree import DEVICES, Machine, put_device
from tests.support.pods import app, manifests, pod

POLICIES = {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"}
GIVING = """cpuManagerPolicy: static
reservedSystemCPUs: "0"
devices: [{resource: x.com/vf, select: [{virtualFunctionsOf: eth0}]}]
"""


def decided(address: str) -> NodeState:
    """A state in which a pod has a device."""
    owner = pod("owner", app(devices={"x.com/vf": 1}))
    card = HeldDevice("x.com/vf", address, kind="network")
    (entry,) = (new_entry(manifest, 1, pod_level_resources=True) for manifest in manifests(owner))
    promises = Promises(
        pods=PodMap().put(owner.uid, NOTHING.having(DeviceHoldings(devices=(("app", (card,)),))))
    ).having(CpuBooks(default=CpuSet.of(0, 1, 2, 3)))
    return NodeState(promises, (entry,))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two NUMA nodes with a card on the second, one of whose two virtual functions is there, and disks of which less is known."""
    made = Machine(cores=("0-1", "2-3"), packages=("0-1", "2-3"), nodes=((0, "0-1"), (1, "2-3"))).grow(
        tmp_path / "root"
    )
    put_device(
        made,
        "0000:3b:00.0",
        {"virtfn0": "0000:3b:00.1"},
        **{"class": "0x020000"},
        uevent="DRIVER=mlx5_core",
        numa_node="1",
        local_cpulist="2-3",
        sriov_totalvfs="2",
        msi_irqs__30="",
        msi_irqs__31="",
        net__eth0__="",
    )
    put_device(made, "0000:3b:00.1", {"physfn": "0000:3b:00.0"}, **{"class": "0x020000"}, numa_node="1")
    put_device(made, "0000:40:00.0", **{"class": "0x010802"}, numa_node="-1", nvme__nvme0__="")
    put_device(made, "0000:41:00.0", **{"class": "0x010802"}, numa_node="4", nvme__nvme1__="")
    return made


SHOWN = """
devices of NUMA node 1
  0000:3b:00.0  network  eth0   mlx5_core  2 interrupts, 1 of 2 virtual
                                             functions

devices of unknown NUMA node (not reported by the firmware)
  0000:40:00.0  nvme     nvme0  no driver
  0000:41:00.0  nvme     nvme1  no driver  the kernel reports node 4, which this
                                             machine lacks
"""


def test_they_are_shown_by_numa_node(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", str(root), "--devices"]) == 0
    assert capsys.readouterr().out.endswith(SHOWN)
    assert main(["topology", "--root", str(root)]) == 0
    assert "devices" not in capsys.readouterr().out


def test_programs_get_all_of_them(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", str(root), "--devices", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schema.check(document, "topology")
    card, function, *disks = document["devices"]
    assert card == {
        "address": "0000:3b:00.0",
        "class": "0x020000",
        "driver": "mlx5_core",
        "interrupts": [30, 31],
        "kind": "network",
        "localCpus": "2-3",
        "maxVirtualFunctions": 2,
        "model": None,
        "names": ["eth0"],
        "numaNode": 1,
        "numaNodeDoubt": None,
        "numaNodeOfKernel": 1,
        "owners": [],
        "pcieRoot": None,
        "physicalFunction": None,
        "vendor": None,
        "virtualFunctions": ["0000:3b:00.1"],
    }
    assert function["physicalFunction"] == "0000:3b:00.0"
    assert [(disk["numaNode"], disk["numaNodeDoubt"], disk["numaNodeOfKernel"]) for disk in disks] == [
        (None, "not said", None),
        (None, "no such node", 4),
    ]
    assert main(["topology", "--root", str(root), "-o", "json"]) == 0
    assert "devices" not in json.loads(capsys.readouterr().out)


def test_whose_each_is_is_said_with_its_resource(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Virtual functions that are somebody's have a line of their own."""
    given = decided("0000:3b:00.1")
    directory = root / "var/lib/nodeagent"
    directory.mkdir(parents=True)
    (directory / "nodeagent_state").write_bytes(encode_state(given, POLICIES))
    (root / "etc/nodeagent").mkdir(parents=True)
    (root / "etc/nodeagent/config.yaml").write_text(GIVING)
    assert main(["topology", "--root", str(root), "--devices"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0000:3b:00.1 network - no driver of default/owner app as x.com/vf" in out
    assert main(["topology", "--root", str(root), "--devices", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    json_schema.check(document, "topology")
    assert [one["owners"] for one in document["devices"][:2]] == [
        [],
        [{"container": "app", "pod": "default/owner", "resource": "x.com/vf"}],
    ]


def test_the_picture_has_them(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", str(root), "--devices", "-o", "svg"]) == 0
    text = unescape(capsys.readouterr().out)
    assert ">devices of NUMA node 1<" in text
    assert ">0000:3b:00.0 · network · eth0 · mlx5_core · 2 interrupts, 1 of 2 virtual functions<" in text
    assert main(["topology", "--root", str(root), "-o", "svg"]) == 0
    assert "devices" not in capsys.readouterr().out


def test_a_capture_keeps_them(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.json"
    assert main(["capture", "--root", str(root), "--out", str(file)]) == 0
    captured = json.loads(file.read_text())
    json_schema.check(captured, "capture")
    assert captured["devices"]["files"][f"{DEVICES}/0000:3b:00.1/physfn"] == "../0000:3b:00.0"
    capsys.readouterr()
    assert main(["topology", "--machine", str(file), "--devices"]) == 0
    assert capsys.readouterr().out.endswith(SHOWN)
    again = tmp_path / "again.json"
    assert main(["capture", "--machine", str(file), "--out", str(again)]) == 0
    assert again.read_bytes() == file.read_bytes()


def test_an_older_capture_says_nothing_of_devices(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "--root", str(root)]) == 0
    older = json.loads(capsys.readouterr().out)
    del older["devices"]
    file, machine = tmp_path / "older.json", tmp_path / "machine.json"
    file.write_text(json.dumps(older))
    assert main(["topology", "--root", str(root), "--devices", "-o", "json"]) == 0
    machine.write_text(capsys.readouterr().out)
    for path in (file, machine):
        assert main(["topology", "--machine", str(path), "--devices"]) == 1
        err = capsys.readouterr().err
        assert (
            f"{path} contains no devices\nhint: use this version of nodeagent to take a new capture on the node" in err
        )
        assert main(["topology", "--machine", str(path)]) == 0
        capsys.readouterr()


def test_devices_that_cannot_be_read_are_left_out_of_a_capture_and_that_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = root / DEVICES / "0000:40:00.0/class"
    spoilt.unlink()
    spoilt.mkdir()
    assert main(["capture", "--root", str(root)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["devices"] is None
    assert f"devices are left out: cannot use {spoilt}: expected a regular file\nhint: " in err
    assert main(["topology", "--root", str(root), "--devices"]) == 1
    assert f"cannot use {spoilt}" in capsys.readouterr().err
    assert main(["topology", "--root", str(root)]) == 0


@pytest.mark.parametrize("words", [["--topology", "2c"], ["-o", "nrt"], ["-o", "hwloc-xml"]])
def test_where_there_are_none_to_show(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topology", "--devices", *words])
    assert ended.value.code == 64
    assert "--devices needs a node, not --topology, and -o text, json, yaml or svg" in capsys.readouterr().err


def test_names_cannot_act_on_a_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_device(root, "0000:50:00.0", **{"class": "0x020000"}, uevent="DRIVER=\x1b[2J\u202e")
    (root / DEVICES / "0000:50:00.0/net/\x1b[2J").mkdir(parents=True)
    for output in ("text", "json", "yaml", "svg"):
        assert main(["topology", "--root", str(root), "--devices", "-o", output]) == 0
        assert not {"\x1b", "\u202e"} & set(capsys.readouterr().out)
