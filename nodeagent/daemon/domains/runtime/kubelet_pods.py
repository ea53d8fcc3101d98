"""What kubelet says of its pods, asked for from the threads that serve the runtime: never for long, and never by the deciding one."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.daemon.reports.logs import Log
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcError, GrpcServerKind, load
from nodeagent.formats.runtime.kubelet_pods import (
    GET_POD,
    MAX_BYTES,
    METADATA,
    KubeletPodError,
    encode_get_pod,
    read_pod,
)
from nodeagent.formats.wire.grpc_messages import Status

KUBELET = GrpcServerKind(
    "kubelet's pods API",
    hint="is it kubelet's (1.37 or later)? `ss -lxp` shows whose; see `journalctl -u kubelet`",
    hint_if_late="it may be stopped or overloaded: `systemctl status kubelet`",
)
PATIENCE_SECONDS = 0.25
"""For one pod. Kubelet answers from its memory, within milliseconds."""
OF_ALL_SECONDS = 1.0
"""For what runs when the runtime is reached."""
_PAUSE_SECONDS = 5.0
"""After which one that has not answered in time is asked again: until then it would keep every container waiting."""
_ESTIMATED = "what only it knows of a pod is estimated (`nodeagent explain POD`)"


class PodsApi:
    """For several threads.

    Args:
        path: of kubelet's socket.
        log: told when it can't be asked, and when it can again.
        is_expected: without a socket that is a problem. Otherwise it may be a kubelet that has none.
    """

    def __init__(self, path: Path, log: Log, *, is_expected: bool) -> None:
        self._path = path
        self._log = log
        self._is_expected = is_expected
        self._lock = threading.Lock()
        self._again = 0.0
        self._problem = ""
        self.known: frozenset[str] = frozenset()
        """UIDs of the pods of which it is saved what kubelet has said."""
        self._wanted: frozenset[str] = frozenset()

    @property
    def problem(self) -> str:
        """Why kubelet was not asked the last time; empty: it was, or nobody wanted to know."""
        with self._lock:
            return f"{self._problem}: {_ESTIMATED}" if self._problem else ""

    def prepare(self) -> None:
        """Load what a first question would have to wait for, where there is somebody to ask."""
        if os.path.exists(self._path):  # noqa: PTH110 - what may not be looked at is none: Path.exists would raise
            load()

    def of(self, uids: Iterable[str], until: float) -> tuple[KubeletPod, ...]:
        """Return what kubelet says of pods, as far as it has them and there is time.

        Args:
            uids: theirs.
            until: as of time.monotonic().
        """
        return self._asked(uids, min(until, time.monotonic() + PATIENCE_SECONDS))

    def unknown_of(self, uids: Iterable[str], until: float) -> tuple[KubeletPod, ...]:
        """Return that of pods of which nothing is saved, or which are to be asked about once more."""
        with self._lock:
            wanted, self._wanted = self._wanted, frozenset()
        new = tuple(uid for uid in uids if uid not in self.known or uid in wanted)
        return self._asked(new, min(until, time.monotonic() + OF_ALL_SECONDS)) if new else ()

    def ask_again(self, uids: Iterable[str]) -> None:
        """Have these asked about at the next opportunity, whatever is known of them, and however long nobody has answered."""
        with self._lock:
            self._wanted |= frozenset(uids)
            self._again = 0.0

    def _asked(self, uids: Iterable[str], until: float) -> tuple[KubeletPod, ...]:
        now = time.monotonic()
        with self._lock:
            if now < self._again or now >= until:
                return ()
        found: list[KubeletPod] = []
        problem, again = "", 0.0
        try:
            found.extend(self._each(uids, until))
        except GrpcError as err:
            if self._is_expected or not err.is_absent:
                problem = f"{err.message} ({err.hint})"
            again = time.monotonic() + _PAUSE_SECONDS if err.is_late else 0.0
        self._note(problem, again)
        return tuple(found)

    def _each(self, uids: Iterable[str], until: float) -> Iterator[KubeletPod]:
        with GrpcClient(KUBELET, self._path, until, MAX_BYTES) as kubelet:
            for uid in uids:
                request = encode_get_pod(uid)
                if request is None:
                    continue
                try:
                    yield read_pod(kubelet.call(GET_POD, request, METADATA), uid)
                except KubeletPodError as err:
                    raise GrpcError(KUBELET, self._path, f"what it says is no pod: {err}") from err
                except GrpcError as err:
                    if err.status != Status.NOT_FOUND:
                        raise

    def _note(self, problem: str, again: float) -> None:
        with self._lock:
            before, self._problem, self._again = self._problem, problem, again
        if problem and problem != before:
            self._log.warning("pods_api_failed", problem=problem)
        elif before and not problem:
            self._log.info("pods_api_answers")
