"""containerd's pods come and go at random while others do, asked for as kubelet does: what fails is asked for again."""

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from integration.containerd import Containerd, CriPod, burstable, guaranteed
from integration.node import Node
from integration.overlap import workload
from integration.overlap.events import cpu_list
from integration.persistent_cri import PersistentCri

_SHARED = (1, 2)
_APP = "app"
_CGROUPS = "/sys/fs/cgroup"


class RuntimeChurn:
    """Arrivals and departures, one after the other, in a thread of its own.

    Args:
        containerd: runs, with the agent as its plugin.
        node: the guest.
        seed: of what comes and goes.
        events: arrivals and departures; the pods that are left then stay.
        cpus: that exclusive containers have at most.
    """

    def __init__(self, containerd: Containerd, node: Node, *, seed: int, events: int, cpus: int) -> None:
        self._node = node
        self._cri = PersistentCri(containerd, node, self._name)
        self._chance = random.Random(seed)
        self._events = events
        self.cpus = cpus
        self.done = 0
        self.pods: dict[CriPod, int] = {}
        """Those that run, with the CPUs of their exclusive container."""
        self.waits_seconds: list[float] = []
        self.names: dict[str, tuple[str, str]] = {}
        self.promised: dict[tuple[str, str], frozenset[int]] = {}
        self._made = 0
        self._pool = ThreadPoolExecutor(1, "runtime-churn")
        self._ended: Future[None] | None = None

    @property
    def refused(self) -> int:
        """Calls that failed: denied, or broken off."""
        return self._cri.refused

    def begin(self) -> None:
        self._ended = self._pool.submit(self._run)
        self._pool.shutdown(wait=False)

    def is_over(self) -> bool:
        """Whether it has ended; raises what it has ended by."""
        if self._ended is None or not self._ended.done():
            return False
        self._ended.result()
        return True

    def _run(self) -> None:
        while self.done < self._events:
            began = time.monotonic()
            self._do_one()
            self.waits_seconds.append(time.monotonic() - began)
            self.done += 1

    def _do_one(self) -> None:
        shared = [pod for pod, cpus in self.pods.items() if not cpus]
        exclusive = [pod for pod, cpus in self.pods.items() if cpus]
        room = self.cpus - sum(self.pods.values())
        least, most = _SHARED
        moves: list[Callable[[], None]] = []
        if len(shared) < least:
            moves = [lambda: self._arrive(0)]
        else:
            moves += [lambda: self._arrive(self._chance.randint(1, room))] * 3 if room > 0 else []
            moves += [lambda: self._depart(self._chance.choice(exclusive))] * 2 if exclusive else []
            moves += [lambda: self._arrive(0)] if len(shared) < most else []
            moves += [lambda: self._depart(self._chance.choice(shared))] if len(shared) > least else []
        self._chance.choice(moves)()

    def _arrive(self, cpus: int) -> None:
        self._made += 1
        pod = CriPod(f"overlap-cri-{self._made}", "" if cpus else "burstable")
        resources = guaranteed(1000 * cpus) if cpus else burstable(10, workload.SHARED_CPU_MILLI)
        command = workload.image_command(cpus, f"{pod.name}-{_APP}")
        self._cri.run(pod, _APP, resources, command, mounts=workload.IMAGE_MOUNTS)
        ready = f"{workload.READY}/{pod.name}-{_APP}"
        self._node.run(f"until [ -e {ready} ]; do sleep 0.2; done")
        for name, found in (
            workload.promised_by(self._node.guest.get(f"{ready}.state"), pod.uid).items() if cpus else ()
        ):
            self.promised[pod.uid, name] = cpu_list(found)
        self.pods[pod] = cpus

    def _depart(self, pod: CriPod) -> None:
        self._cri.remove(pod)
        self._node.run(f"rm {workload.READY}/{pod.name}-*")
        del self.pods[pod]

    def _name(self, pod: CriPod, container: str) -> None:
        self.names[pod.container_cgroup(container).removeprefix(_CGROUPS)] = (pod.uid, _APP)
