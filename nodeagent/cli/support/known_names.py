"""Names of pods, containers and reservations, for completion. Only the needed part of the agent's answer is decoded, to be fast. After an
error, there are no names, because a completion must not print errors.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from nodeagent.cli.support.places import DEFAULT_JOB_SOCKET, DEFAULT_SOCKET
from nodeagent.edge.files import state_files
from nodeagent.edge.transport.local_api_client import call
from nodeagent.errors import NodeAgentError

SAVED_STATE = "/var/lib/nodeagent/nodeagent_state"
"""Path of the saved state, if the configuration doesn't set another `stateDirectory`."""
_MAX_BYTES = 64 * 1024 * 1024
_NAME = re.compile("[a-z0-9.-]+")
"""Pattern of names in Kubernetes. Other names, which a damaged file may contain, are not passed to the shell."""
_SECONDS = 1.0
"""Longest time, in seconds, to wait for the agent's answer after the user has pressed TAB."""


class NamedPod(Struct, frozen=True):
    namespace: str
    name: str
    containers: tuple[str, ...]

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_named_pods(given: Mapping[str, str]) -> tuple[NamedPod, ...]:
    """Return the node's pods. The result is empty if the pods are unknown.

    Args:
        given: the values typed so far, by argument. `socket`, `root` and `machine` select the node.
    """
    with suppress(NodeAgentError, OSError, ValueError, TypeError, LookupError, AttributeError):
        pods = []
        for entry in _read_state(given)["entries"]:
            metadata, spec = entry["pod"]["metadata"], entry["pod"]["spec"]
            containers = tuple(one["name"] for one in (*spec.get("initContainers", ()), *spec["containers"]))
            pods.append(NamedPod(metadata.get("namespace", "default"), metadata["name"], containers))
        return tuple(pod for pod in pods if all(map(_NAME.fullmatch, (pod.namespace, pod.name, *pod.containers))))
    return ()


def find_reservations(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the reservations. The result is empty if the reservations are unknown."""
    with suppress(NodeAgentError, TypeError, LookupError):
        answer = call(given.get("socket", DEFAULT_JOB_SOCKET), "queue", timeout_seconds=_SECONDS)
        return tuple(name for one in answer["reservations"] if _NAME.fullmatch(name := str(one["name"])))
    return ()


def _read_state(given: Mapping[str, str]) -> Mapping[str, Any]:
    if "machine" in given:
        content = state_files.read(given["machine"], max_bytes=_MAX_BYTES, follow_symlinks=True) or b""
        captured: Mapping[str, Any] = json.loads(content)["agent"]["state"]
        return captured
    if "root" in given:
        return _read_saved_state(given["root"].rstrip("/") + SAVED_STATE)
    try:
        answer = call(given.get("socket", DEFAULT_SOCKET), "state", timeout_seconds=_SECONDS)
    except NodeAgentError:
        return _read_saved_state(SAVED_STATE)
    state: Mapping[str, Any] = answer["state"]
    return state


def _read_saved_state(path: str) -> Mapping[str, Any]:
    content = state_files.read(path, max_bytes=_MAX_BYTES) or b""
    state: Mapping[str, Any] = json.loads(content.splitlines()[1])
    return state
