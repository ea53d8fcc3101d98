"""Every truncated prefix and every flipped bit of every version of every state file: refused, or taken for what it was; never a crash.

And whatever lies there, a start with `stateRecovery: recover` ends with the promises of those who run.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.checkpoint_versions import CheckpointError, read_checkpoint
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state, encode_cpu_state
from nodeagent.formats.checkpoint.device_checkpoint import DeviceCheckpointError, decode_devices
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state, encode_memory_state
from nodeagent.formats.checkpoint.node_state import NodeStateError, decode_state
from tests.daemon.test_recovery import MEMORY, Life, sets, two_nodes
from tests.formats.checkpoint import test_checkpoint_versions as versions
from tests.support.figures import Recorder, keep, report
from tests.support.pods import app, pod
from tests.support.shares import share
from tests.support.world import node

Reader = Callable[[bytes], object]
"""Gives what it takes a text for; None: it refuses it."""


def prefixes(content: bytes) -> Iterator[bytes]:
    yield from (content[:size] for size in range(len(content)))


def flips(content: bytes, bits: range) -> Iterator[bytes]:
    """One bit of one byte; with fewer bits than eight, another one for each next byte."""
    for place in range(len(content)):
        for bit in bits:
            damaged = bytearray(content)
            damaged[place] ^= 1 << (bit if len(bits) == 8 else place % 8)
            yield bytes(damaged)


def cpu_record(content: bytes, *, pod_level: bool) -> object:
    found = decode_cpu_state(content.decode(errors="replace"), pod_level=pod_level, initial=versions.IDS, newer=True)
    if isinstance(found, Unreadable):
        return None
    try:
        entries = [(uid, [(name, CpuSet.parse(text)) for name, text in own]) for uid, own in found.entries]
        return found.policy_name, CpuSet.parse(found.default), entries, found.pod_entries
    except ValueError:
        return None  # so does the manager: it judges the texts


def memory_record(content: bytes, *, pod_level: bool) -> object:
    found = decode_memory_state(content.decode(errors="replace"), pod_level=pod_level, newer=True)
    return None if isinstance(found, Unreadable) else found


def own_state(content: bytes) -> object:
    try:
        return decode_state(content)
    except NodeStateError as err:
        return reported(err)


def reported(err: NodeAgentError) -> None:
    """Every refusal says what it is about and what to do."""
    assert err.message
    assert err.hint


def judged(content: bytes) -> object:
    """`nodeagent checkpoint verify`."""
    try:
        found = read_checkpoint(content)
    except CheckpointError as err:
        return reported(err)
    return None if found.problem is not None else (found.policies, found.promises, found.by_id, found.registered)


def device_record(content: bytes) -> object:
    try:
        return decode_devices(content.decode(errors="replace"))
    except DeviceCheckpointError:
        return None


READERS: dict[str, list[tuple[str, Reader]]] = {
    "cpu": [
        ("gate off", lambda c: cpu_record(c, pod_level=False)),
        ("gate on", lambda c: cpu_record(c, pod_level=True)),
        ("verify", judged),
    ],
    "memory": [
        ("gate off", lambda c: memory_record(c, pod_level=False)),
        ("gate on", lambda c: memory_record(c, pod_level=True)),
        ("verify", judged),
    ],
    "devices": [("recovery", device_record), ("verify", judged)],
    "nodeagent": [("start", own_state), ("verify", judged)],
}
POD = pod("a", app("app", "2"))
OF = node(two_nodes(), **MEMORY)


def a_state(directory: Path) -> bytes:
    return Life(directory, OF, POD).agent.saved


@pytest.mark.parametrize("name", [*versions.FILES, "nodeagent, a pod"])
def test_damage_is_refused_or_harmless(tmp_path: Path, record_property: Recorder, name: str) -> None:
    content = a_state(tmp_path) if name == "nodeagent, a pod" else versions.FILES[name][0]
    counts = {"truncations": 0, "flips": 0, "refused": 0, "taken, unchanged": 0, "taken unseen": 0}
    unsummed = re.sub(rb'"checksum":\d+', b'"checksum":0', content)
    for reader, read in READERS[name.replace(",", "").partition(" ")[0]]:
        # kubelet takes files without a checksum: a flip in that field's name makes one, and its content is what it was.
        whole, unseen = read(content), read(unsummed)
        for kind, damages in (("truncations", prefixes(content)), ("flips", flips(content, range(8)))):
            for damaged in share(tuple(damages)):
                counts[kind] += 1
                found = read(damaged)
                assert found is None or found in (whole, unseen), f"{reader} takes for another state: {damaged!r}"
                counts["refused" if found is None else "taken, unchanged" if found == whole else "taken unseen"] += 1
    report(record_property, f"damage to {name}, {len(content)} bytes: {counts}")
    keep("damaged files", name, truncations=counts["truncations"], flips=counts["flips"])
    assert counts["refused"] > counts["taken, unchanged"]


def lives(tmp_path: Path) -> tuple[Life, dict[str, bytes]]:
    life = Life(tmp_path, OF, POD)
    names = (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT)
    return life, {name: (tmp_path / name).read_bytes() for name in names}


CASES: dict[str, tuple[str, tuple[str, ...], Callable[[NodeState], bytes] | None]] = {
    "the truth": (STATE_FILE, (CPU_CHECKPOINT, MEMORY_CHECKPOINT), None),
    "the truth alone": (STATE_FILE, (), None),
    "cpu-v2, the truth gone": (CPU_CHECKPOINT, (MEMORY_CHECKPOINT,), None),
    "cpu-v3, the truth gone": (
        CPU_CHECKPOINT,
        (MEMORY_CHECKPOINT,),
        lambda state: encode_cpu_state("static", state.promises, pod_level=True).encode(),
    ),
    "memory-v1, the truth gone": (MEMORY_CHECKPOINT, (CPU_CHECKPOINT,), None),
    "memory-v2, the truth gone": (
        MEMORY_CHECKPOINT,
        (CPU_CHECKPOINT,),
        lambda state: encode_memory_state("Static", state.promises, pod_level=True).encode(),
    ),
}
"""What is damaged, what lies there undamaged, and how it is written if not as the agent does."""


@pytest.mark.parametrize("name", CASES)
def test_whatever_lies_there_a_start_keeps_who_runs(tmp_path: Path, record_property: Recorder, name: str) -> None:
    victim, others, written = CASES[name]
    life, files = lives(tmp_path)
    content = files[victim] if written is None else written(life.before)
    for other in files.keys() - {victim, *others}:
        (tmp_path / other).unlink()
    counts: dict[str, int] = {"starts": 0, "recovered": 0, "set aside": 0}
    tried = share((*prefixes(content), *flips(content, range(1))))
    for damaged in tried:
        (tmp_path / victim).write_bytes(damaged)
        found = life.start()
        counts["starts"] += 1
        assert sets(found.state) == sets(life.before)
        assert memory_nodes_of(found.state.promises, "uid-a", "app") == memory_nodes_of(
            life.before.promises, "uid-a", "app"
        )
        assert [e.containers for e in found.state.entries] == [e.containers for e in life.before.entries]
        reported = found.recovery
        assert reported is not None
        assert reported.differences == ()
        assert reported.refused == ()
        counts["recovered"] += 1
        counts["set aside"] += victim in reported.unusable
    report(record_property, f"starts with {name} damaged, {len(content)} bytes: {counts}")
    keep("starts with damaged files", name, starts=counts["starts"])
    assert counts["set aside"] > len(tried) // 2, "what can't be read is never overwritten"


HOSTILE: dict[str, Any] = {
    "a large file of nothing": b"\0" * 2**20,
    "deep": b"[" * 200_000,
    "a long line": b'{"format":"nodeagent_state","version":1,"sha256":"' + b"a" * 2**20,
    "another's": b'{"policyName":"static","defaultCpuSet":"0-4294967295","checksum":0}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_keep_nobody_from_starting(tmp_path: Path, name: str) -> None:
    life, files = lives(tmp_path)
    for file in files:
        (tmp_path / file).write_bytes(HOSTILE[name])
    found = life.start()
    assert sets(found.state) == sets(life.before)
    assert found.recovery is not None
    assert STATE_FILE in found.recovery.unusable


def test_the_records_compared_are_no_empty_ones() -> None:
    for name, (content, _) in versions.FILES.items():
        found = READERS[name.replace(",", "").partition(" ")[0]][-1][1](content)
        assert found is not None, name
    assert isinstance(decode_cpu_state(versions.samples.VERSION_2, pod_level=False, initial={}), CpuRecord)
    assert isinstance(memory_record(versions.FILES["memory 2"][0], pod_level=True), MemoryRecord)
