"""What a failed test's guest looked like, for readers of the report: the guest is gone by then."""

import re
import time

from integration.guest.errors import GuestDiedError
from integration.guest.guest import Guest
from integration.node import ROOT

_SHOWN = {
    # the agent stops no command: if not even `true` ends, that is the emulator's fault
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
"""For all queries, at once: there is no point in waiting for a hanging guest."""


def examined(guest: Guest) -> str:
    """Return the answers of the guest; of what isn't answered in time, the beginning."""
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
    """Return the first problems that the kernel reported on its console, and where its CPUs were then, even for a hanging guest."""
    found = [line for line in console.splitlines() if _COMPLAINT.search(line)]
    return "\n".join(found[:_MOST_COMPLAINTS]) or "none"
