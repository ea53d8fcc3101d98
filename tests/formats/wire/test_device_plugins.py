"""What a device plugin's answer gives a container with mounts of its own, read from upstream's messages."""

import pytest

from nodeagent.core.model.device_access import DeviceMount
from nodeagent.formats.wire.device_plugins import (
    MAX_ANSWER_BYTES,
    PluginAccess,
    PluginFile,
    decode_access,
    decode_allocated,
    decode_preferred,
    decode_variables,
)
from nodeagent.formats.wire.protobuf import ProtobufError
from tests.support.protos import generated

MESSAGES = generated("device_plugins")[0]


def test_everything_that_an_answer_can_have() -> None:
    answer = MESSAGES.ContainerAllocateResponse(
        envs={"B": "2"},
        mounts=[
            MESSAGES.Mount(container_path="/lib/gpu", host_path="/opt/gpu/lib", read_only=True),
            MESSAGES.Mount(container_path="/run/gpu", host_path="/run/gpu"),
        ],
        devices=[MESSAGES.DeviceSpec(container_path="/dev/gpu", host_path="/dev/gpu3", permissions="rw")],
        annotations={"b": "2", "a": "1"},
        cdi_devices=[MESSAGES.CDIDevice(name="example.com/gpu=3")],
    ).SerializeToString()
    assert decode_access(answer) == PluginAccess(
        (PluginFile("/dev/gpu", "/dev/gpu3"),),
        (
            DeviceMount("/lib/gpu", "/opt/gpu/lib", is_read_only=True),
            DeviceMount("/run/gpu", "/run/gpu", is_read_only=False),
        ),
        (("a", "1"), ("b", "2")),
        ("example.com/gpu=3",),
    )
    assert decode_variables(answer) == (("B", "2"),)


def test_an_answer_may_have_nothing() -> None:
    assert decode_access(b"") == PluginAccess((), (), (), ())


@pytest.mark.parametrize("path", ["", "dev/gpu", "/dev/\0gpu"])
def test_a_path_that_is_not_absolute_is_no_path(path: str) -> None:
    named = MESSAGES.DeviceSpec(container_path="/dev/gpu", host_path=path)
    with pytest.raises(ProtobufError, match=r"host_path .* is not an absolute path"):
        decode_access(MESSAGES.ContainerAllocateResponse(devices=[named]).SerializeToString())
    mounted = MESSAGES.Mount(container_path=path, host_path="/opt")
    with pytest.raises(ProtobufError, match=r"container_path .* is not an absolute path"):
        decode_access(MESSAGES.ContainerAllocateResponse(mounts=[mounted]).SerializeToString())


def test_an_answer_that_is_too_large_to_be_kept_is_none() -> None:
    def answering(size: int) -> bytes:
        one = MESSAGES.ContainerAllocateResponse(annotations={"a": "x" * size})
        return MESSAGES.AllocateResponse(container_responses=[one]).SerializeToString()

    assert decode_allocated(answering(MAX_ANSWER_BYTES - 100)) is not None
    with pytest.raises(ProtobufError, match="more than the limit of 65536"):
        decode_allocated(answering(MAX_ANSWER_BYTES))


@pytest.mark.parametrize(("value", "is_taken"), [("x" * 32_000, True), ("x" * 32_768, False), ("\x01" * 6_000, False)])
def test_variables_that_no_start_has_room_for_are_refused(value: str, *, is_taken: bool) -> None:
    """The JSON of a start writes a control character in six bytes."""
    one = MESSAGES.ContainerAllocateResponse(envs={"A": value})
    answer = MESSAGES.AllocateResponse(container_responses=[one]).SerializeToString()
    if is_taken:
        assert decode_allocated(answer) == one.SerializeToString()
        return
    with pytest.raises(ProtobufError, match="bytes as JSON, more than the limit of 32768"):
        decode_allocated(answer)


def test_no_more_devices_are_preferred_than_there_can_be() -> None:
    one = MESSAGES.ContainerPreferredAllocationResponse(deviceIDs=["a"] * 16_385)
    with pytest.raises(ProtobufError, match="prefers 16385 devices"):
        decode_preferred(MESSAGES.PreferredAllocationResponse(container_responses=[one]).SerializeToString())
