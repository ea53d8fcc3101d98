"""Starts QEMU processes that never outlive this one, and finds out whether this machine can accelerate them."""

import os
import platform
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from integration.guest.cache import cache_directory, content_key
from integration.guest.emulator import emulator_command
from integration.guest.images import Image
from integration.guest.machine import CPU_MODEL, TWO_SOCKETS
from integration.guest.phases import phase

_KVM = Path("/dev/kvm")
_SILENT_SECONDS = 4
"""A kernel that runs says its first words in a fraction of a second; one whose first instructions fail says nothing and goes on."""
_PROBE_SECONDS = 10
_BARE = ("-nodefaults", "-no-user-config", "-display", "none", "-machine", "pc")

# Its threads are more than there are processors: one that holds a guest's lock should be let go on (SCHED_BATCH), while others spin for it.
# Measured with two guests that start the agent at the same time, four turns each: 10 to 14 s of processor time, without it 11 to 21 s.
_ALONE = ("setpriv", "--pdeathsig", "KILL", "chrt", "--batch", "0")

# PDEATHSIG is tied to the thread that started the process, not to its process: so one thread that never ends.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="qemu starter")


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str


KVM = Accelerator("kvm")
TCG_AT_ONCE = Accelerator("tcg,thread=multi")
TCG = Accelerator("tcg,thread=single")
"""All processors of a guest run in turns, in one thread, so that none translates code while another changes it (`Guest._has_stalled`).
With a thread each, two guests at a time take a seventh more processor time for their tests, and nearly twice as much for a boot."""


def start_qemu(
    accelerator: Accelerator, arguments: tuple[str, ...], log: Path, fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    """QEMU with nothing but what the arguments give it; its own messages go to the log."""
    command = (*_ALONE, *emulator_command(), *_BARE, "-accel", accelerator.name, *arguments)
    with log.open("wb") as output:
        start = _STARTER.submit(
            subprocess.Popen, command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=fds
        )
        return start.result()


def find_accelerator(image: Image) -> Accelerator:
    """KVM if a guest's kernel really comes up with it (the device may be there and yet fail); remembered in the cache."""
    if not os.access(_KVM, os.R_OK | os.W_OK):
        return TCG
    key = content_key((platform.release(), *emulator_command(), CPU_MODEL, image.release.codename, str(os.geteuid())))
    answer = cache_directory() / f"kvm-{key}"
    if not answer.exists():
        with phase("trying KVM"):
            works = _boots_with_kvm(image)
        answer.write_text("works\n" if works else "fails\n")
    return KVM if answer.read_text() == "works\n" else TCG


def _boots_with_kvm(image: Image) -> bool:
    with tempfile.TemporaryDirectory(prefix="nodeagent-kvm-") as directory:
        console = Path(directory, "console")
        boot = ("-kernel", os.fspath(image.kernel), "-initrd", os.fspath(image.initrd), "-serial", f"file:{console}")
        append = ("-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1 nodeagent.probe", "-no-reboot")
        process = start_qemu(KVM, (*TWO_SOCKETS.qemu_arguments(), *boot, *append), Path(directory, "log"))
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SILENT_SECONDS)
        if console.exists() and console.stat().st_size:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PROBE_SECONDS)
        process.kill()
        process.wait()
        return console.exists() and b"nodeagent-probe-ok" in console.read_bytes()
