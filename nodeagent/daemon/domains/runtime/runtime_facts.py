"""Facts about the container runtime for `nodeagent check`. They come from a short connection as a plugin, and from containerd's
configuration files.
"""

import threading
import time
from pathlib import Path

from nodeagent.core.model.nri import Answer, Call, Event, Runtime, Synchronized, Update
from nodeagent.daemon.domains.runtime.kubelet_pods import KUBELET
from nodeagent.edge.files import state_files
from nodeagent.edge.runtime.nri import Answered, NriConnection, NriError
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcError
from nodeagent.formats.config.containerd_config import ContainerdConfigError, NriConfig, read_imports, read_nri_config
from nodeagent.formats.runtime.kubelet_pods import GET_POD, MAX_BYTES, METADATA, encode_get_pod
from nodeagent.formats.wire.grpc_messages import Status
from nodeagent.views.check.runtime_facts import PodsApiFacts, RuntimeFacts

_CONFIG = "/etc/containerd/config.toml"
_MAX_BYTES = 1 << 20
_MAX_FILES = 100
_SECONDS = 10.0
"""Time limit for the whole connection. It is longer than the 5 s for which the runtime may first wait for other plugins."""
_PODS_API_SECONDS = 5.0
_NOBODY = "00000000-0000-0000-0000-000000000000"
"""UID that no pod has, for a test request to kubelet."""


def runtime_facts(
    socket: str, root: Path = Path("/"), *, pods_socket: str = "", is_elsewhere: bool = False
) -> RuntimeFacts:
    """Collect the facts about the runtime, its configuration, and kubelet's pods API if `pods_socket` isn't empty.

    `is_elsewhere` means that `root` is a copy of another host's files. In this case, only the configuration is read.
    """
    config, config_problem = None, ""
    try:
        config = _read_config(root)
    except (ContainerdConfigError, state_files.StateFileError) as err:
        config_problem = str(err)
    if is_elsewhere:
        return RuntimeFacts(config=config, config_problem=config_problem)
    pods = _try_pods_api(Path(pods_socket)) if pods_socket else None
    plugin = _Visitor(Path(socket))
    try:
        found = plugin.runtime()
    except NriError as err:
        is_hidden = isinstance(err.__cause__, PermissionError)
        return RuntimeFacts(None, err.message, err.hint, is_hidden, config, config_problem, pods)
    return RuntimeFacts(found, config=config, config_problem=config_problem, pods_api=pods)


def _try_pods_api(path: Path) -> PodsApiFacts:
    nobody = encode_get_pod(_NOBODY)
    assert nobody is not None
    try:
        with GrpcClient(KUBELET, path, time.monotonic() + _PODS_API_SECONDS, MAX_BYTES) as kubelet:
            kubelet.call(GET_POD, nobody, METADATA)
    except GrpcError as err:
        if err.status == Status.NOT_FOUND:
            return PodsApiFacts()
        return PodsApiFacts(err.message, err.hint, err.is_absent, isinstance(err.__cause__, PermissionError))
    return PodsApiFacts()


def _read_config(root: Path) -> NriConfig | None:
    files: list[tuple[str, bytes]] = []
    waiting = [_CONFIG]
    seen = set()
    while waiting and len(files) < _MAX_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        content = state_files.read(str(root / path.lstrip("/")), max_bytes=_MAX_BYTES, follow_symlinks=True)
        if content is not None:
            files.append((path, content))
            for pattern in read_imports(content, path):
                relative = str(Path(path).parent / pattern).lstrip("/")
                waiting += sorted(f"/{file.relative_to(root)}" for file in root.glob(relative))
    return read_nri_config(tuple(files)) if files else None


class _Visitor:
    """NRI plugin that disconnects as soon as the runtime has accepted it."""

    name, index = "nodeagent-check", 99
    events = frozenset({Event.REMOVE_POD_SANDBOX})
    """Event to which the plugin subscribes, because NRI rejects an empty subscription. This event requires no decision."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runtime: Runtime | None = None
        self._is_taken = False
        self._connection = NriConnection(path, self)

    def runtime(self) -> Runtime:
        """Connect to the runtime, and return its name and versions.

        Raises:
            NriError: the runtime has not accepted the plugin in time.
        """
        bell = threading.Timer(_SECONDS, self._connection.close)
        bell.daemon = True
        bell.start()
        try:
            self._connection.serve()
        finally:
            bell.cancel()
        if self._runtime is None or not self._is_taken:
            why = f"it has not accepted a plugin within {_SECONDS:g} s"
            raise NriError(self._path, why, "another plugin may delay containerd: see `journalctl -u containerd`")
        return self._runtime

    def configure(self, runtime: Runtime, /) -> None:
        self._runtime = runtime

    def synchronize(self, _known: Synchronized, _until: float, /) -> tuple[Update, ...]:
        self._is_taken = True
        return ()

    def handle(self, _call: Call, _until: float, /) -> Answer:
        return Answer()

    def shut_down(self) -> None: ...

    def note(self, _answered: Answered, /) -> None:
        if self._is_taken:
            self._connection.close()
