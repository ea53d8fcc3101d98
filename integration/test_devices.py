"""Devices of pods' own, on a machine with two network cards whose NUMA nodes the kernel knows from the firmware's tables."""

import json

import grpc
import pytest

from integration.containerd import Containerd, CriPod, guaranteed, plugged_in
from integration.guest.guest import Guest
from integration.node import CONFIG, ROOT as CGROUPS, Document, Node, container, pod
from integration.plugin_program import KUBELET_SOCKET, MESSAGES, device_plugin
from scripts.shown import DOCS, ON_A_NODE, blocks

pytestmark = [pytest.mark.configures, pytest.mark.long]

SLEEP = ["sleep", "infinity"]
NIC = "example.com/nic"
GIVING = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
interruptIsolation: affinity
devices:
  - resource: example.com/nic
    select: [{kind: network, numaNode: 0}, {kind: network, numaNode: 1}]
"""


DISK = "example.com/disk"
GIVING_DISKS = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
nriSocket: ""
devices:
  - resource: example.com/disk
    select: [{kind: nvme}]
"""
GPU = "example.com/gpu"
PLUGGED = f"""
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
nriSocket: ""
devicePluginSocket: {KUBELET_SOCKET}
"""
USING = """
b() { /bin/busybox "$@"; }
{
    b env | b grep -e ^NODEAGENT_ -e ^GPU
    echo library=$(b cat /usr/lib/gpu/library)
    echo read=$(b dd if=/dev/gpu bs=4096 count=1 2>/dev/null | b wc -c)
    echo write=$(b touch /usr/lib/gpu/new 2>&1 | b sed 's/.*: //')
    echo end=
} >/found/$1
exec /bin/busybox sleep 1000000
"""
LOOKING = """
b() { /bin/busybox "$@"; }
own=$(echo /dev/nvme?n1)
for other in $2; do
    [ $other = $(b stat -c %t:%T $own) ] || b mknod /dev/other b $((0x${other%:*})) $((0x${other#*:}))
done
{
    b env | b grep ^NODEAGENT_
    echo files=$(echo /dev/ng* /dev/nvme*)
    echo own=$(b dd if=$own bs=4096 count=1 2>/dev/null | b wc -c)
    echo other=$(b dd if=/dev/other bs=4096 count=1 2>&1 >/dev/null | b sed 's/.*: //')
    echo end=
} >/found/$1
exec /bin/busybox sleep 1000000
"""


def asking(name: str, count: int = 1) -> Document:
    made = pod(name, container("app", SLEEP, cpu="2"))
    made["spec"]["containers"][0]["resources"]["limits"][NIC] = count
    return made


def devices_of(node: Node, name: str) -> list[Document]:
    found: list[Document] = node.state()["promises"]["pods"][f"uid-{name}"].get("devices", {}).get("app", [])
    return found


def numa_of(node: Node, name: str) -> str:
    own: str = node.state()["promises"]["pods"][f"uid-{name}"]["cpus"]["app"]
    return str(int(own.partition("-")[0].partition(",")[0]) // 8)


def test_each_pod_has_a_card_of_its_own_on_its_node(two_cards: Guest) -> None:
    node = Node(two_cards)
    node.configure(GIVING)
    node.apply(asking("first"), asking("second"), asking("third"))
    node.wait_running("first", "second", refused=["third"])
    cards = [devices_of(node, name) for name in ("first", "second")]
    assert len({one["id"] for own in cards for one in own}) == 2
    assert [[numa_of(node, name)] for name in ("first", "second")] == [[one["nodes"] for one in own] for own in cards]
    reason, message, _ = node.entry("third")["refusal"]
    assert (reason, message.partition(",")[0]) == (f"OutOf{NIC}", f"Node didn't have enough resource: {NIC}")
    (pid,) = node.pids(f"{CGROUPS}/poduid-first/app")
    environment = node.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout
    assert f"NODEAGENT_DEVICES={cards[0][0]['id']}\n" in environment
    assert f"NODEAGENT_DEVICES_EXAMPLE_COM_NIC={cards[0][0]['id']}\n" in environment
    shown = json.loads(node.run("nodeagent topology --devices -o json").stdout)["devices"]
    owners = {one["address"]: [each["pod"] for each in one["owners"]] for one in shown}
    assert owners[cards[0][0]["id"]] == ["default/first"]
    node.run("systemctl restart nodeagent")
    node.wait_running("first", "second", refused=["third"])
    assert [devices_of(node, name) for name in ("first", "second")] == cards, "a restart gives nothing anew"
    node.delete("first")
    node.wait_gone("first")
    node.run("nodeagent retry default/third")
    node.wait_running("second", "third")
    assert [one["id"] for one in devices_of(node, "third")] == [cards[0][0]["id"]]


def test_a_card_without_its_place_stays_promised(two_cards: Guest) -> None:
    """The kernel takes it away, as when it is pulled out; and finds it again."""
    node = Node(two_cards)
    node.configure(GIVING)
    node.apply(asking("holder"))
    node.wait_running("holder")
    (card,) = devices_of(node, "holder")
    node.run(f"echo 1 >/sys/bus/pci/devices/{card['id']}/remove")

    def is_told() -> bool | None:
        return any(card["id"] in problem for problem in node.inspect()["node"]["problems"]) or None

    node.until(is_told, lambda: str(node.inspect()["node"]["problems"]))
    assert devices_of(node, "holder") == [card]
    node.run("echo 1 >/sys/bus/pci/rescan")
    node.until(lambda: is_told() is None or None, lambda: str(node.inspect()["node"]["problems"]))


def test_a_container_of_containerd_has_the_files_of_its_disk_and_of_no_other(two_cards: Guest) -> None:
    """It reads its disk, makes itself a file for the other one, as a container may, and can't open that."""
    node = Node(two_cards)
    node.run("modprobe nvme && udevadm settle && mkdir -p /root/found")
    disks = node.run("stat -c %t:%T /dev/nvme?n1").stdout
    assert len(disks.split()) == 2
    node.configure(GIVING_DISKS)
    with Containerd(node) as containerd, plugged_in(node, containerd):
        for name in ("first", "second"):
            holder = CriPod(name, annotations=((f"devices.nodeagent.io/{name}", f"{DISK}=1"),))
            command = ("/bin/busybox", "sh", "-c", LOOKING, "sh", name, disks)
            box = containerd.run_pod(holder)
            containerd.start(
                containerd.create(holder, box, name, guaranteed(1000), command, mounts={"/root/found": "/found"})
            )
        found = [told(node, name) for name in ("first", "second")]
        owns = [node.state()["promises"]["pods"][f"uid-{name}"]["devices"][name][0] for name in ("first", "second")]
        assert [one["NODEAGENT_DEVICES_EXAMPLE_COM_DISK"] for one in found] == [one["id"] for one in owns]
        assert len({one["id"] for one in owns}) == 2
        for one, own in zip(found, owns, strict=True):
            (name,) = own["names"]
            number = name.removeprefix("nvme")
            assert one["files"].split() == [f"/dev/ng{number}n1", f"/dev/{name}", f"/dev/{name}n1"]
            assert (one["own"], one["other"]) == ("4096", REFUSED), found
        third = CriPod("third", annotations=(("devices.nodeagent.io/app", f"{DISK}=1"),))
        with pytest.raises(grpc.RpcError, match=f"OutOf{DISK}: Node didn't have enough resource: {DISK}"):
            containerd.create(third, containerd.run_pod(third), "app", guaranteed(1000))


def test_a_device_plugins_devices_come_with_all_that_it_answers(two_cards: Guest) -> None:
    """To a container of containerd's: its file, mount and variables; to a pod of the agent's own the variables. Each on its NUMA node."""
    node = Node(two_cards)
    node.clear()
    usual = node.guest.get(CONFIG)
    node.run("mkdir -p /opt/gpu /root/found && echo of-the-plugin >/opt/gpu/library && rm -f /dev/plugged")
    node.run("mknod /dev/plugged c 1 5")
    node.guest.put(CONFIG, PLUGGED)
    answer = MESSAGES.ContainerAllocateResponse(
        envs={"GPU_VISIBLE": "yes", "HOME": "/gpu"},
        devices=[MESSAGES.DeviceSpec(container_path="/dev/gpu", host_path="/dev/plugged", permissions="rw")],
        mounts=[MESSAGES.Mount(container_path="/usr/lib/gpu", host_path="/opt/gpu", read_only=True)],
    )
    with (
        Containerd(node) as containerd,
        plugged_in(node, containerd),
        device_plugin(node, GPU, {"a": 1, "b": 0}, answer),
    ):
        gpu = CriPod("gpu", annotations=(("devices.nodeagent.io/app", f"{GPU}=1"),))
        command = ("/bin/busybox", "sh", "-c", USING, "sh", "gpu")
        box = containerd.run_pod(gpu)
        app = containerd.create(gpu, box, "app", guaranteed(1000), command, mounts={"/root/found": "/found"})
        containerd.start(app)
        found = told(node, "gpu")
        (own,) = node.state()["promises"]["pods"]["uid-gpu"]["devices"]["app"]
        assert (found["GPU_VISIBLE"], found["NODEAGENT_DEVICES_EXAMPLE_COM_GPU"]) == ("yes", own["id"])
        assert (found["library"], found["read"], found["write"]) == ("of-the-plugin", "4096", "Read-only file system")
        cpus = node.value(gpu.container_cgroup(app), "cpuset.cpus.effective")
        assert int(cpus) // 8 == int(own["nodes"])
        made = pod("own", container("app", SLEEP, cpu="1"))
        made["spec"]["containers"][0]["resources"]["limits"][GPU] = 1
        node.apply(made)
        node.wait_running("own")
        (pid,) = node.pids(f"{CGROUPS}/poduid-own/app")
        environment = node.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout
        assert "GPU_VISIBLE=yes\n" in environment
        (other,) = node.state()["promises"]["pods"]["uid-own"]["devices"]["app"]
        assert {own["id"], other["id"]} == {"a", "b"}
        node.delete("own")
        node.wait_gone("own")
    node.guest.put(CONFIG, usual)
    node.restart_agent()


def test_a_unit_that_may_use_nothing_may_use_its_own_disk(two_cards: Guest) -> None:
    """By systemd, as long as it is pinned; one that may use everything has no rule that takes the rest from it."""
    node = Node(two_cards)
    node.run("modprobe nvme && udevadm settle")
    node.configure(GIVING_DISKS)
    for name, setting in (("locked", "DevicePolicy=closed"), ("free", "")):
        node.guest.put(f"/run/systemd/system/{name}.service", f"[Service]\nExecStart=sleep infinity\n{setting}\n")
    node.run("systemctl daemon-reload && systemctl start locked free")
    for name in ("locked", "free"):
        assert node.run(f"nodeagent pin {name} --cpus 1 --memory 64Mi --device {DISK} --wait").returncode == 0
    disks = {}
    for entry in node.state()["entries"]:
        held = node.state()["promises"]["pods"][entry["pod"]["metadata"]["uid"]]["devices"]["unit"]
        disks[entry["pod"]["metadata"]["name"]] = held[0]["names"][0]
    mine, other = disks["locked.service"], disks["free.service"]
    assert rules(node, "locked") == [f"/dev/ng{mine[4:]}n1 rw", f"/dev/{mine} rw", f"/dev/{mine}n1 rw"]
    assert rules(node, "free") == []
    assert (reads(node, "locked", f"{mine}n1"), reads(node, "locked", f"{other}n1")) == ("", REFUSED)
    assert (reads(node, "free", f"{mine}n1"), reads(node, "free", f"{other}n1")) == ("", "")
    node.restart_agent()
    node.run("nodeagent unpin locked --wait")
    assert rules(node, "locked") == []
    assert reads(node, "locked", f"{mine}n1") == REFUSED


REFUSED = "Operation not permitted"


def rules(node: Node, unit: str) -> list[str]:
    return sorted(node.run(f"systemctl show --property=DeviceAllow --value {unit}").stdout.splitlines())


def reads(node: Node, unit: str, disk: str) -> str:
    """Read a disk as a process of a unit; what the kernel says to that, empty: nothing."""
    procs = f"/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs"
    script = f"echo $$ >{procs} && exec dd if=/dev/{disk} of=/dev/null bs=4096 count=1 status=none 2>&1"
    return node.run(f"sh -c '{script}'", check=False).stdout.strip().rpartition(": ")[2]


def told(node: Node, name: str) -> dict[str, str]:
    """What a container has written, once it has written all."""

    def whole() -> list[str] | None:
        there = node.run(f"cat /root/found/{name}", check=False).stdout.splitlines()
        return there if there and there[-1] == "end=" else None

    lines = node.until(whole, lambda: node.run(f"cat /root/found/{name}", check=False).stdout)
    return dict(line.split("=", 1) for line in lines)


def test_the_page_goes_as_it_is_written(two_cards: Guest) -> None:
    page = blocks((DOCS / "how-to" / "devices.md").read_text())
    files = {block.title: block.text for block in page if block.is_file}
    node = Node(two_cards)
    node.configure(files["config.yaml"])
    node.guest.put("/root/forwarder.yaml", files["forwarder.yaml"])
    typed = [shown.command for block in page if block.title == ON_A_NODE for shown in block.commands()]
    assert len(typed) >= 4
    # without line breaks
    said = [" ".join(node.run(f"cd /root && {command}").stdout.split()) for command in typed]
    assert "example.com/nic, NUMA" in said[1]
    assert "of default/forwarder app as example.com/nic" in said[2]
    assert "which devices? 0000:" in said[3]
