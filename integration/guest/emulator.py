"""QEMU from Debian 13, unpacked into the cache and run from there, whatever the host's own version is.

Debian 12's QEMU 7.2 translates code without holding its page's lock, so that a CPU may keep a translation of what
another is just overwriting. Linux overwrites its own code while it runs (static keys, tracepoints): with 16 emulated
CPUs every seventh boot of kernel 6.12 died of a breakpoint that was no longer there, and switching a tracepoint on
under load did it too. The lock came with QEMU 8.1.
"""

from pathlib import Path

from integration.guest import apt, trees
from integration.guest.cache import building, cache_directory, content_key, keep_newest, locked, mark_used
from integration.guest.errors import SetupError
from integration.guest.packages import ensure_packages
from integration.guest.phases import phase
from integration.guest.releases import DEBIAN_13
from integration.guest.trees import unpack_debian

_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/lib/*/perl*")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_KEPT = 2


def is_there() -> bool:
    return _entry().exists()


def emulator_command() -> tuple[str, ...]:
    """How to run it: with the dynamic loader and the libraries it was built for."""
    root = _entry() / "root"
    if not root.exists():
        raise SetupError("there is no emulator yet\nhint: python -m integration.guest.images")
    loader = (f"{root}/{_LIBRARIES}/ld-linux-x86-64.so.2", "--library-path", f"{root}/{_LIBRARIES}")
    firmware = ("-L", f"{root}/usr/share/qemu", "-L", f"{root}/usr/share/seabios")
    return (*loader, f"{root}/usr/bin/qemu-system-x86_64", *firmware)


def ensure_emulator() -> None:
    """Unpack it if it isn't in the cache; as root."""
    ensure_packages()
    with locked("qemu"):
        entry = _entry()
        if not entry.exists():
            with building(entry) as directory, phase("QEMU: downloading and unpacking Debian packages"):
                packages = ("qemu-system-x86",)
                unpack_debian(DEBIAN_13, directory / "root", variant="extract", packages=packages, left_out=_LEFT_OUT)
            keep_newest("qemu-", _KEPT)
        mark_used(entry)


def _entry() -> Path:
    recipe = [Path(module).read_bytes() for module in (__file__, trees.__file__)]
    return cache_directory() / f"qemu-{content_key((*apt.sources(DEBIAN_13), *recipe))}"
