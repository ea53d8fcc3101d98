"""Time that a busy hypervisor takes from a run is named first: real steal, in a guest (inner) that runs under KVM in a guest (outer).

The outer guest's processor has AMD's virtualisation, which TCG emulates. TCG itself takes time from its guests without counting it.
"""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from integration.guest.cache import REPOSITORY
from integration.guest.emulator import emulator_command
from integration.guest.errors import EmulatorFailedError, GuestError
from integration.guest.guest import Guest
from integration.guest.images import Image, guest_image
from integration.guest.machine import TWO_SOCKETS, Node
from integration.guest.releases import DEBIAN_13
from integration.node import CONFIG, Document
from tests.support.figures import keep

RUNS = 10
OUTER = replace(
    TWO_SOCKETS,
    name="outer",
    sockets=1,
    cores=2,
    threads=1,
    nodes=(Node("0-1", 2048),),
    distances=((10,),),
    at_once=True,
    cpu_model="max,vendor=AuthenticAMD,+svm,+npt",
)
PORT = "/run/port"
"""Two named pipes, which are the other end of the inner guest's serial port."""
INNER = f"""#!/bin/bash
exec 3<>/dev/vport*p1
umount /sys/kernel/tracing
systemctl start nodeagent
work() {{
nodeagent job --cpus 1 --memory 64Mi --report /run/one.json --repeat {RUNS} -- bash -c 'for i in {{1..10000}}; do :; done' >&2
for n in {{1..{RUNS}}}; do tr -d '\\n' </run/one-$n.json; echo; done >&3
}}
work
read -u 3
work
"""
"""Without tracepoints, which change the kernel's code: an emulated processor may stop there (`Guest._has_stalled`)."""
UNIT = "[Service]\nType=oneshot\nExecStart=/bin/bash /root/inner\nStandardError=tty\nTTYPath=/dev/ttyS0\n"
INSTALL = f"""modprobe kvm-amd
mkdir /run/disk; mount /dev/vdb /run/disk; cd /run/disk
cp /run/inner root; cp /run/inner.service etc/systemd/system; cp /run/config.yaml .{CONFIG}
ln -s ../inner.service etc/systemd/system/multi-user.target.wants
ln -sf /dev/null etc/systemd/system/nodeagent-guest-agent.service
cd /; umount /run/disk; mount /dev/vdc /mnt; mkfifo {PORT}.in {PORT}.out"""
"""The inner guest has no use for the agent that carries out what a test asks for."""
CMDLINE = "quiet console=ttyS0 root=/dev/vda cgroup_no_v1=all panic=-1 nowatchdog mitigations=off apparmor=0 audit=0"
HARDWARE = (
    *("-nodefaults", "-no-user-config", "-display", "none", "-machine", "pc", "-accel", "kvm", "-cpu", "host"),
    *("-name", "inner,debug-threads=on", "-smp", "2", "-m", "1024M", "-no-reboot", "-serial", "file:/run/console"),
    *("-drive", "file=/dev/vdb,if=none,id=disk,format=raw,cache=unsafe", "-device", "virtio-blk-pci,drive=disk"),
    *(
        "-chardev",
        f"pipe,id=port,path={PORT}",
        "-device",
        "virtio-serial-pci",
        "-device",
        "virtserialport,chardev=port",
    ),
    *("-kernel", "/mnt/kernel", "-initrd", "/mnt/initrd", "-append", CMDLINE),
)
PIN = "until thread=$(grep -l 'CPU 1/KVM' /proc/[0-9]*/task/*/comm); do sleep 1; done; taskset -pc 1 $(basename $(dirname $thread))"
BUSY = "systemd-run -q --unit=busy -p CPUAffinity=1 -p CPUWeight=50 bash -c 'while :; do :; done'"
"""A task that has a third of the outer CPU on which the job's CPU runs."""


@pytest.mark.long  # tests/cli/test_run_report.py has steal in files
@pytest.mark.flaky(reruns=2, only_rerun=GuestError)  # the emulator spoils some inner guests: one stops, or resets
def test_time_that_a_busy_hypervisor_takes_is_named_first_in_nine_runs_of_ten(tmp_path: Path) -> None:
    """And in none of the runs before, when the hypervisor is idle."""
    image = guest_image(DEBIAN_13)
    machine = replace(OUTER, drives=(str(image.disk), str(emulator_disk(image, tmp_path))))
    with Guest.boot(image, machine, cmdline=["isolcpus=1"]) as outer:
        boot_inner(outer)
        calm = reports(outer)
        outer.run(f"{BUSY}; echo >{PORT}.in")
        found = reports(outer)
    assert [one for run in calm for one in run["disturbances"] if one["name"] == "steal"] == []
    first = [run["disturbances"][0]["name"] if run["disturbances"] else run["verdict"] for run in found]
    assert first.count("steal") >= RUNS - 1, [run["disturbances"] for run in found]
    keep("stolen time", "busy", named_first=first.count("steal"), runs=RUNS, calm_runs_without=len(calm))


def emulator_disk(image: Image, directory: Path) -> Path:
    """Make a disk for the outer guest, with the emulator and what the inner guest boots from."""
    files, disk = directory / "files", directory / "files.img"
    shutil.copytree(emulator_root() / "usr", files / "emulator" / "usr", symlinks=True)
    for file in (image.kernel, image.initrd):
        shutil.copy(file, files / file.name)
    subprocess.run(("mke2fs", "-q", "-t", "ext4", "-d", files, disk, "512M"), check=True)
    shutil.rmtree(files)
    return disk


def emulator_root() -> Path:
    """Return the directory with the emulator and its libraries."""
    return next(parent for parent in Path(emulator_command()[0]).parents if parent.name == "root")


def boot_inner(outer: Guest) -> None:
    """Boot the inner guest, with the CPU of its jobs on a CPU that the outer guest uses for nothing else."""
    outer.put("/run/inner", INNER)
    outer.put("/run/inner.service", UNIT)
    outer.put("/run/config.yaml", (REPOSITORY / "examples" / "config.yaml").read_bytes())
    outer.run(INSTALL)
    emulator = [part.replace(str(emulator_root()), "/mnt/emulator") for part in emulator_command()]
    outer.run(["systemd-run", "-q", "--unit=inner", *emulator, *HARDWARE])
    outer.run(PIN)


def reports(outer: Guest) -> list[Document]:
    """Wait for the reports of one job."""
    lines = outer.run(f"head -n {RUNS} {PORT}.out", timeout_seconds=500).stdout.splitlines()
    if len(lines) < RUNS:
        raise EmulatorFailedError("the inner guest ended", outer.run("cat /run/console; journalctl -u inner").stdout)
    return [json.loads(line) for line in lines]
