"""The agent's changes as system calls: parses strace's output."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from integration.node import Node

_OUTPUT = "/run/strace-of-agent"
_UNIT = "strace-of-agent"
_FILES = (
    *(
        "open",
        "openat",
        "openat2",
        "creat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
    ),
    *("unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "mknod", "mknodat", "truncate", "chmod", "fchmodat"),
    *("chown", "lchown", "fchownat", "setxattr", "lsetxattr", "removexattr", "utimensat", "mount", "umount2"),
)
_DESCRIPTORS = (
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate", "fchmod", "fchown", "fsetxattr"),
    *("fremovexattr", "copy_file_range", "sendfile"),
)
_PROCESSES = (
    "kill",
    "tkill",
    "tgkill",
    "pidfd_send_signal",
    "rt_sigqueueinfo",
    "setns",
    "unshare",
    "execve",
    "execveat",
)
_CALL = re.compile(r"^\d+\s+(\w+)\((.*)")
_PLACE = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<directory>[^>]*)>, )?"(?P<path>[^"]*)"')
_DESCRIPTOR = re.compile(r"\d+<(?P<path>[^>]*)>")
_WRITES = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")
_KINDS = {"openat": "open", "open": "open", "creat": "open", "openat2": "open"}
_KINDS |= {"rename": "os.rename", "renameat": "os.rename", "renameat2": "os.rename", "unlink": "os.remove"}
_KINDS |= {"mkdir": "os.mkdir", "mkdirat": "os.mkdir", "rmdir": "os.rmdir", "link": "os.link", "linkat": "os.link"}


@dataclass(frozen=True)
class Change:
    """A system call that changes something."""

    name: str
    path: str
    """Empty: it is about a process."""
    says: str

    @property
    def kind(self) -> str:
        """As Python's audit hooks call it."""
        if self.name == "unlinkat":
            return "os.rmdir" if "AT_REMOVEDIR" in self.says else "os.remove"
        return _KINDS.get(self.name, self.name)


def changes(text: str) -> Iterator[Change]:
    """Read the calls that change a file, a directory or a process."""
    for line in text.splitlines():
        found = _CALL.match(line)
        if found is None:
            continue  # the rest of a call that another thread's came into, or an exit
        name, arguments = found.groups()
        if name in _PROCESSES:
            yield Change(name, "", line)
        elif name in _DESCRIPTORS:
            place = _DESCRIPTOR.match(arguments)
            yield Change(name, place["path"] if place else "", line)
        elif "open" not in name or any(flag in arguments for flag in _WRITES):
            place = _PLACE.match(arguments)
            path = place["path"] if place else ""
            yield Change(name, path if path.startswith("/") or not place else f"{place['directory']}/{path}", line)


@contextmanager
def traced(node: Node, pid: int) -> Iterator[list[Change]]:
    """Watch a process; its changes are available after the block."""
    calls = ",".join((*_FILES, *_DESCRIPTORS, *_PROCESSES))
    found: list[Change] = []
    node.run(
        f"rm -f {_OUTPUT}; systemd-run --quiet --collect --unit={_UNIT} strace -f -qq -y -s 300 -e signal=none -e trace={calls}"
        f" -o {_OUTPUT} -p {pid}; until grep -q 'TracerPid:.[1-9]' /proc/{pid}/status; do sleep 0.1; done"
    )
    try:
        yield found
    finally:
        node.run(f"systemctl stop {_UNIT}")
    found += changes(node.guest.get(_OUTPUT).decode(errors="replace"))
