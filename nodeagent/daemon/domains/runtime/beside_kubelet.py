"""Check that kubelet on this node leaves CPU and memory management to the agent, for nodes with `nriSocket`."""

from pathlib import Path

from nodeagent.edge.files import state_files
from nodeagent.edge.runtime.kubelet import read_kubelet_arguments
from nodeagent.formats.config.kubelet_beside import KubeletFiles, find_kubelet_conflicts
from nodeagent.formats.config.kubelet_flags import pair_flags

_CONFIG, _ROOT = "/var/lib/kubelet/config.yaml", "/var/lib/kubelet"
_MAX_BYTES = 1 << 20
_MAX_PARTS = 100


def kubelet_problem(root: Path = Path("/")) -> str | None:
    """Describe the kubelet settings that conflict with the agent, or that can't be read. None means that there are none."""
    arguments = read_kubelet_arguments(root / "proc")
    flags = {flag.name: flag.value for flag in pair_flags(arguments)}
    state_directory = flags.get("root-dir") or _ROOT
    paths = [flags.get("config") or _CONFIG]
    if parts := flags.get("config-dir"):
        paths += sorted(str(Path(parts, file.name)) for file in _below(root, parts).glob("*.conf"))[:_MAX_PARTS]
    try:
        found = find_kubelet_conflicts(
            KubeletFiles(
                tuple((path, content) for path in paths if (content := _read(root, path)) is not None),
                arguments,
                state_directory,
                _text(root, f"{state_directory}/cpu_manager_state"),
                _text(root, f"{state_directory}/memory_manager_state"),
            )
        )
    except state_files.StateFileError as err:
        return (
            f"kubelet's files can't be read, so it is unknown whether kubelet manages CPUs: {err.message} ({err.hint})"
        )
    return "; ".join(map(str, found)) or None


def _text(root: Path, path: str) -> str | None:
    content = _read(root, path)
    return None if content is None else content.decode(errors="replace")


def _read(root: Path, path: str) -> bytes | None:
    return state_files.read(str(_below(root, path)), max_bytes=_MAX_BYTES, follow_symlinks=True)


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
