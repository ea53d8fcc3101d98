"""The files that make a Debian tree a guest: identity, the agent's unit, and no services that only cost time."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).parent
_INSTALLED_CONFIGURATION = _PACKAGE.parents[1] / "examples/config.yaml"
AGENT_DIRECTORY = "usr/local/lib/nodeagent-guest"

# Measured on 2 CPUs under emulation: without these, multi-user comes after 12.5 s instead of 16.6 s.
_MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "containerd.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty-static.service",
    "getty@tty1.service",
    "irqbalance.service",
    "kmod-static-nodes.service",
    "ldconfig.service",
    "man-db.timer",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
    "proc-sys-fs-binfmt_misc.automount",
    "prometheus.service",
    "serial-getty@ttyS0.service",  # agetty would take the console away from the kernel's and systemd's messages
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "systemd-binfmt.service",
    "systemd-hwdb-update.service",
    "systemd-logind.service",
    "systemd-random-seed.service",
    "systemd-timesyncd.service",
    "systemd-udev-trigger.service",  # devices are there; udevd still sees what is plugged later
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
    "systemd-user-sessions.service",
)

_AGENT_UNIT = f"""\
[Unit]
Description=Runs what the host asks for, over a virtio serial port
DefaultDependencies=no
IgnoreOnIsolate=yes

[Service]
ExecStart=/usr/bin/python3 -E -s -m integration.guest.agent
WorkingDirectory=/{AGENT_DIRECTORY}
Restart=always
RestartSec=0
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=sysinit.target
"""

# Emulation is 10 to 20 times slower than what systemd's own limits are made for.
_MANAGER = "[Manager]\nDefaultTimeoutStartSec=10min\nDefaultTimeoutStopSec=5min\n"
_JOURNAL = "[Journal]\nStorage=volatile\nRateLimitBurst=0\n"


def quiet_configuration() -> str:
    """What an installation has, but the host is left alone: tests that are about the host's isolation switch it on."""
    text, count = re.subn(
        r"^(hostIsolation|interruptIsolation): \w+",
        r"\1: none",
        _INSTALLED_CONFIGURATION.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 2, "the installed configuration has both"
    return text


def guest_files() -> dict[str, bytes]:
    """Path (without the leading slash) to content."""
    text = {
        "etc/machine-id": "6e6f64656167656e7467756573740001\n",  # a fixed one: no first-boot work
        "etc/hostname": "guest\n",
        "etc/hosts": "127.0.0.1 localhost guest\n",
        "etc/fstab": "",
        "etc/systemd/system.conf.d/guest.conf": _MANAGER,
        "etc/systemd/journald.conf.d/guest.conf": _JOURNAL,
        "etc/systemd/system/nodeagent-guest-agent.service": _AGENT_UNIT,
        "etc/nodeagent/config.yaml": quiet_configuration(),
    }
    package = f"{AGENT_DIRECTORY}/integration/guest"
    text |= {f"{AGENT_DIRECTORY}/integration/__init__.py": "", f"{package}/__init__.py": ""}
    text |= {f"{package}/{name}": (_PACKAGE / name).read_text() for name in ("agent.py", "protocol.py")}
    return {path: content.encode() for path, content in text.items()}


def guest_links() -> dict[str, str]:
    """Path (without the leading slash) to the symbolic link's target."""
    units = "etc/systemd/system"
    return {f"{units}/{unit}": "/dev/null" for unit in _MASKED} | {
        f"{units}/default.target": "/lib/systemd/system/multi-user.target",
        f"{units}/sysinit.target.wants/nodeagent-guest-agent.service": f"/{units}/nodeagent-guest-agent.service",
    }
