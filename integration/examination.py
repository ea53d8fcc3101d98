"""What a failed test's guest looks like, for whoever reads the report: there is no guest any more then."""

import time

from integration.guest.errors import GuestError
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
_CPU_SECONDS = 5


def examined(guest: Guest) -> str:
    """Give what can still be asked of the guest."""
    parts = []
    try:
        silent = silent_cpus(guest)
        parts.append(f"CPUs on which nothing runs: {silent or 'none'}")
        for title, script in _SHOWN.items():
            shown = guest.run(f"{{ {script}; }} 2>&1", check=False).stdout
            parts.append(f"{title}\n{shown}")
    except GuestError as err:
        parts.append(f"nothing more can be asked: {err}")
    return "\n\n".join(parts)


def silent_cpus(guest: Guest) -> list[int]:
    """Give the online CPUs on which not even `true` comes to its end: no agent stops one, so that is the emulator's doing."""
    online = guest.run("grep -h '^processor' /proc/cpuinfo").stdout.split("\n")
    numbers = [int(line.partition(":")[2]) for line in online if line]
    tries = {number: guest.start(("taskset", "-c", str(number), "true")) for number in numbers}
    deadline = time.monotonic() + guest.patience(_CPU_SECONDS)
    return [number for number, run in tries.items() if run.wait(max(0.0, deadline - time.monotonic())) is None]
