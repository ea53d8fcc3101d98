"""What a failed test's guest looks like, for whoever reads the report: there is no guest any more then."""

import re
import time

from integration.guest.errors import GuestDiedError
from integration.guest.guest import Guest
from integration.node import ROOT

_SHOWN = {
    # no agent stops one: where not even `true` comes to its end, that is the emulator's doing
    "CPUs on which a program came to its end": (
        "for n in $(sed -n 's/^processor.*: //p' /proc/cpuinfo); do taskset -c $n true && echo -n \"$n \" & done; wait"
    ),
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
_MOST_SECONDS = 60
"""For all that is asked, at once: of a guest that hangs there is nothing to wait for."""


def examined(guest: Guest) -> str:
    """Give what can still be asked of the guest; of what isn't answered in time, the beginning."""
    parts = [f"the kernel's complaints:\n{complaints(guest.console_text())}"]
    ends = time.monotonic() + _MOST_SECONDS
    try:
        asked = {title: guest.start(("bash", "-c", f"{{ {script}; }} 2>&1")) for title, script in _SHOWN.items()}
        for title, request in asked.items():
            status = request.wait(max(0.0, ends - time.monotonic()))
            answer = "" if status is not None else " (no answer to its end)"
            parts.append(f"{title}{answer}:\n{request.stdout.decode(errors='replace')}")
    except GuestDiedError as err:
        parts.append(f"nothing more can be asked: {err}")
    return "\n\n".join(parts)


def complaints(console: str) -> str:
    """Give the first things that the kernel complained of on its console, and where its CPUs were then, of a guest that hangs, too."""
    found = [line for line in console.splitlines() if _COMPLAINT.search(line)]
    return "\n".join(found[:_MOST_COMPLAINTS]) or "none"
