"""`python -m integration.partition_cost`: what beginning and ending a partition of a cpuset costs, on kernels with 4 to 32 CPUs.

The machines are emulated: only how one figure compares with another says something about real ones.
"""

import sys
from dataclasses import replace

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import TWO_SOCKETS, Machine, Node
from integration.guest.phases import phase
from integration.guest.releases import release_of

MEASURE = """
import os, statistics, time
ROOT = "/sys/fs/cgroup"
def write(file, text):
    began = time.perf_counter()
    with open(file, "w") as out:
        out.write(text)
    return (time.perf_counter() - began) * 1000
write(f"{ROOT}/cgroup.subtree_control", "+cpuset")
here = f"{ROOT}/cost"
os.mkdir(here)
count = os.cpu_count()
threads = sum(len(os.listdir(f"/proc/{pid}/task")) for pid in os.listdir("/proc") if pid.isdigit())
for cpus in (1, count // 4, count // 2):
    chosen = f"{count - cpus}-{count - 1}"
    write(f"{here}/cpuset.cpus", chosen)
    write(f"{here}/cpuset.cpus.exclusive", chosen)
    begin, end = [], []
    for _ in range(15):
        begin.append(write(f"{here}/cpuset.cpus.partition", "root"))
        with open(f"{here}/cpuset.cpus.partition") as file:
            assert file.read().strip() == "root"
        end.append(write(f"{here}/cpuset.cpus.partition", "member"))
    print(f"{count:8} {cpus:12} {statistics.median(begin):12.1f} {statistics.median(end):10.1f} {threads:10}")
os.rmdir(here)
"""


def machine(cpus: int) -> Machine:
    """Two sockets with so many CPUs in all."""
    half = cpus // 2
    nodes = (Node(f"0-{half - 1}", 1024), Node(f"{half}-{cpus - 1}", 1024))
    return replace(TWO_SOCKETS, name=f"{cpus}-cpus", cores=cpus // 4, nodes=nodes)


def main() -> int:
    image = guest_image(release_of(13))
    print("    CPUs in partition    begin, ms    end, ms    threads", flush=True)
    for cpus in (4, 8, 16, 32):
        with phase(f"booting a machine with {cpus} CPUs"):
            guest = Guest.boot(image, machine(cpus))
        with guest:
            guest.put("/tmp/measure.py", MEASURE.encode())
            print(guest.run("systemctl stop nodeagent; python3 /tmp/measure.py").stdout, end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
