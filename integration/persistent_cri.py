"""Asks containerd as kubelet does: what fails is asked for again, be it denied, or broken off as somebody was killed."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc

from integration.containerd import EMPTY, FOR_EVER, Containerd, CriPod
from integration.node import Node

DISTURBED_SECONDS = 60
"""Of a real machine: as long as agent and runtime are killed again and again, what one of them breaks off is asked for again."""
_LEAST_ATTEMPTS = 8
"""Before it is in vain: on a loaded machine one takes a minute, and whoever is killed meanwhile breaks off one at most."""
T = TypeVar("T")


class PersistentCri:
    """Pods that come and go in the end.

    Args:
        containerd: may not answer now and then.
        node: the guest.
        on_container: told of each container's pod and id, before it is started or stopped.
    """

    def __init__(
        self, containerd: Containerd, node: Node, on_container: Callable[[CriPod, str], None] = lambda _pod, _id: None
    ) -> None:
        self._containerd, self._node = containerd, node
        self._on_container = on_container
        self.refused = 0
        """Calls that failed."""

    def run(
        self,
        pod: CriPod,
        name: str,
        resources: Any,
        command: tuple[str, ...] = FOR_EVER,
        *,
        mounts: Mapping[str, str] = EMPTY,
    ) -> str:
        """Start a pod's only container, with all anew if something fails, as kubelet does if the sandbox doesn't run any more."""

        def come() -> str:
            self._remove_all_of(pod)
            sandbox = self._containerd.run_pod(pod)
            container = self._containerd.create(pod, sandbox, name, resources, command, mounts=mounts)
            self._on_container(pod, container)
            self._containerd.start(container)
            return container

        return self._ask(come, f"{pod.name} to run")

    def update(self, container: str, resources: Any) -> None:
        def do() -> bool:
            self._containerd.update(container, resources)
            return True

        self._ask(do, f"{container} to be updated")

    def remove(self, pod: CriPod) -> None:
        """Let it go, and wait until the agent has what it had."""

        def go() -> bool | None:
            self._remove_all_of(pod)
            return None if self._containerd.sandboxes_of(pod) else True

        self._ask(go, f"{pod.name} to go")
        self._node.wait(
            lambda state: pod.uid not in state["promises"]["pods"],
            f"what {pod.name} had to be given back",
            seconds=DISTURBED_SECONDS,
        )

    def _ask(self, ask: Callable[[], T | None], what: str) -> T:
        """Ask until there is a result."""
        said: list[str] = []

        def attempt() -> T | None:
            try:
                return ask()
            except grpc.RpcError as err:
                self.refused += 1
                said.append(str(err))
                return None

        return self._node.until(attempt, lambda: f"{what}: {said[-3:]}", DISTURBED_SECONDS, least_looks=_LEAST_ATTEMPTS)

    def _remove_all_of(self, pod: CriPod) -> None:
        for container in self._containerd.containers_of(pod):
            self._on_container(pod, container)
            self._containerd.stop(container)
            self._containerd.remove(container)
        for box in self._containerd.sandboxes_of(pod):
            self._containerd.remove_pod(box)
