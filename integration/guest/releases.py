"""The two Debian releases that guests run, and the packages in them; nothing here builds or runs anything."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    number: int
    codename: str
    python: str
    prometheus_packages: tuple[str, ...]
    """With promtool in both; the server, which one release is enough for, is in Debian 12's package."""
    runtime_packages: tuple[str, ...] = ()
    """A container runtime with NRI (containerd 1.7 and later), which doesn't run until a test starts it."""

    def __str__(self) -> str:
        return f"Debian {self.number}"


DEBIAN_12 = Release(12, "bookworm", "3.11", prometheus_packages=("prometheus",))
DEBIAN_13 = Release(13, "trixie", "3.13", prometheus_packages=("promtool",), runtime_packages=("containerd",))
RELEASES = (DEBIAN_12, DEBIAN_13)

PACKAGES = (
    "bash-completion",
    "busybox-static",  # the initrd's only program
    "curl",  # metrics and the local API by hand
    "dbus",
    "fish",  # completes commands, as bash and zsh do
    "iproute2",
    "irqbalance",
    "kmod",
    "less",
    "linux-image-cloud-amd64",
    "make",  # the project installs itself with it
    "man-db",
    "numactl",
    "procps",
    "python3",
    "python3-venv",
    "rt-tests",  # what `nodeagent probe` measures with
    "strace",
    "sudo",  # what the documentation's reader types, who isn't root
    "systemd-sysv",
    "tmux",  # a terminal that a test can look at
    "udev",
    "util-linux",
    "zsh",
)

# None of these matters to a guest that lives for minutes, all of them cost time under emulation.
# The kernel's hook would build an initrd with initramfs-tools; ours is smaller (see initrd.py).
LEFT_OUT = (
    "/etc/kernel/postinst.d/initramfs-tools",
    "/usr/share/doc/*",
    "/usr/share/fonts/*",
    "/usr/share/javascript/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/usr/share/nodejs/*",
    "/usr/share/prometheus/*",
)


def release_of(number: int) -> Release:
    return next(release for release in RELEASES if release.number == number)


def packages_of(release: Release) -> tuple[str, ...]:
    return (*PACKAGES, *release.prometheus_packages, *release.runtime_packages)
