"""Client of kubelet's pods API, for the threads that serve the runtime. Only these threads wait for kubelet, never the deciding thread."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.daemon.reports.logs import Log
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcError, GrpcServerKind, load_h2
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
    hint="is it kubelet's (1.37 or later)? `ss -lxp` shows the program that listens; see `journalctl -u kubelet`",
    hint_if_late="it may be stopped or overloaded: `systemctl status kubelet`",
)
PATIENCE_SECONDS = 0.25
"""Seconds to wait for an answer about one pod. kubelet answers from memory, within milliseconds."""
OF_ALL_SECONDS = 1.0
"""Seconds to wait in total for the answers about all pods after the runtime has connected."""
_PAUSE_SECONDS = 5.0
"""Seconds without requests after kubelet has failed to answer in time. Without this pause, every new container would wait for the timeout,
too.
"""
_ESTIMATED = "values that only kubelet knows are estimated (`nodeagent explain POD`)"


class PodsApi:
    """Client of kubelet's pods API, shared by several threads.

    Args:
        path: path of kubelet's socket.
        log: the log.
        is_expected: whether a missing socket is a problem. It isn't if kubelet may be older than this API.
    """

    def __init__(self, path: Path, log: Log, *, is_expected: bool) -> None:
        self._path = path
        self._log = log
        self._is_expected = is_expected
        self._lock = threading.Lock()
        self._ask_at = 0.0
        """Monotonic time before which kubelet isn't asked."""
        self._problem = ""
        self.known: frozenset[str] = frozenset()
        """UIDs of the pods about which kubelet's answers are saved."""
        self._to_repeat: frozenset[str] = frozenset()
        """UIDs of the pods for which `ask_unknown` must repeat the request, although an answer is saved."""

    @property
    def problem(self) -> str:
        """Return the reason why the last request to kubelet failed. Empty means that it succeeded, or that no request has been sent."""
        with self._lock:
            return f"{self._problem}: {_ESTIMATED}" if self._problem else ""

    def prepare(self) -> None:
        """Import the gRPC client now if the socket exists, so that the import doesn't delay the first request."""
        if os.path.exists(self._path):  # noqa: PTH110 - what may not be looked at is none: Path.exists would raise
            load_h2()

    def ask(self, uids: Iterable[str], until: float) -> tuple[KubeletPod, ...]:
        """Ask kubelet about pods, and return the answers that arrive before the monotonic time `until`. Pods that kubelet doesn't know are
        left out.
        """
        return self._request(uids, min(until, time.monotonic() + PATIENCE_SECONDS))

    def ask_unknown(self, uids: Iterable[str], until: float) -> tuple[KubeletPod, ...]:
        """Ask kubelet about the pods for which no answer is saved, and about the pods passed to `ask_again`. Return the answers."""
        with self._lock:
            repeated, self._to_repeat = self._to_repeat, frozenset()
        new = tuple(uid for uid in uids if uid not in self.known or uid in repeated)
        return self._request(new, min(until, time.monotonic() + OF_ALL_SECONDS)) if new else ()

    def ask_again(self, uids: Iterable[str]) -> None:
        """Make `ask_unknown` ask about these pods although answers are saved, and end a pause after a timeout."""
        with self._lock:
            self._to_repeat |= frozenset(uids)
            self._ask_at = 0.0

    def _request(self, uids: Iterable[str], until: float) -> tuple[KubeletPod, ...]:
        now = time.monotonic()
        with self._lock:
            if now < self._ask_at or now >= until:
                return ()
        found: list[KubeletPod] = []
        problem, ask_at = "", 0.0
        try:
            found.extend(self._call(uids, until))
        except GrpcError as err:
            if self._is_expected or not err.is_absent:
                problem = f"{err.message} ({err.hint})"
            ask_at = time.monotonic() + _PAUSE_SECONDS if err.is_late else 0.0
        with self._lock:
            before, self._problem, self._ask_at = self._problem, problem, ask_at
        if problem and problem != before:
            self._log.warning("pods_api_failed", problem=problem)
        elif before and not problem:
            self._log.info("pods_api_answers")
        return tuple(found)

    def _call(self, uids: Iterable[str], until: float) -> Iterator[KubeletPod]:
        with GrpcClient(KUBELET, self._path, until, MAX_BYTES) as kubelet:
            for uid in uids:
                request = encode_get_pod(uid)
                if request is None:
                    continue
                try:
                    yield read_pod(kubelet.call(GET_POD, request, METADATA), uid)
                except KubeletPodError as err:
                    raise GrpcError(KUBELET, self._path, f"its answer is not a pod: {err}") from err
                except GrpcError as err:
                    if err.status != Status.NOT_FOUND:
                        raise
