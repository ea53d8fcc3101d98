"""What a failed test's guest looks like, for whoever reads the report: there is no guest any more then."""

import re
import time
from collections.abc import Callable
from functools import partial

from integration.guest.errors import GuestDiedError, GuestError
from integration.guest.guest import Guest
from integration.node import ROOT

_SHOWN = {
    "units": "systemctl --no-pager --lines=0 status 'nodeagent*'; systemctl list-jobs --no-pager",
    "journal": "journalctl -b -n 80 --no-pager -o short-monotonic",
    "kernel": "dmesg | tail -n 20",
    "node": "nodeagent inspect",
    "cgroups": f"cd {ROOT} && find . \\( -name cgroup.procs -o -name cpuset.cpus -o -name cgroup.events \\) -exec grep -H . {{}} +",
    "files": "df / /run; free -m; ls -lnR /etc/nodeagent /var/lib/nodeagent /var/lib/nodeagent-pods /run/nodeagent /run/nodeagent-pods",
    "processes": "ps -eLo pid,ppid,psr,stat,wchan:20,args --no-headers | grep -v ' \\['",
}
_COMPLAINT = re.compile(r"INFO: |BUG: |WARNING: |Oops|Kernel panic|kthread starved|RIP: 0010:")
_MOST_COMPLAINTS = 40
_CPU_SECONDS = 2
_PRINT_SECONDS = 2


def examined(guest: Guest) -> str:
    """Give what can still be asked of the guest: an answer that doesn't come is no reason not to ask for the next."""
    asks: dict[str, Callable[[], str]] = {"CPUs on which nothing runs": lambda: str(silent_cpus(guest))}
    asks |= {title: partial(_printed, guest, script) for title, script in _SHOWN.items()}
    parts = [f"the kernel's complaints:\n{complaints(guest.console_text())}"]
    for title, ask in asks.items():
        try:
            parts.append(f"{title}:\n{ask()}")
        except GuestDiedError as err:
            return "\n\n".join([*parts, f"nothing more can be asked: {err}"])
        except GuestError as err:
            parts.append(f"{title}: no answer: {err}")
    return "\n\n".join(parts)


def _printed(guest: Guest, script: str) -> str:
    return guest.run(f"{{ {script}; }} 2>&1", check=False, timeout_seconds=_PRINT_SECONDS).stdout


def complaints(console: str) -> str:
    """Give the first things that the kernel complained of on its console, and where its CPUs were then, of a guest that hangs, too."""
    found = [line for line in console.splitlines() if _COMPLAINT.search(line)]
    return "\n".join(found[:_MOST_COMPLAINTS]) or "none"


def silent_cpus(guest: Guest) -> list[int]:
    """Give the online CPUs on which not even `true` comes to its end: no agent stops one, so that is the emulator's doing."""
    online = guest.run("grep '^processor' /proc/cpuinfo", timeout_seconds=_PRINT_SECONDS).stdout.splitlines()
    numbers = [int(line.partition(":")[2]) for line in online]
    tries = {number: guest.start(("taskset", "-c", str(number), "true")) for number in numbers}
    deadline = time.monotonic() + guest.patience(_CPU_SECONDS)
    return [number for number, run in tries.items() if run.wait(max(0.0, deadline - time.monotonic())) is None]
