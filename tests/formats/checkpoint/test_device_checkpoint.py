"""kubelet_internal_checkpoint: files that kubelets have written are read, and their checksums are ours."""

import pytest

from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.formats.checkpoint.device_checkpoint import DeviceCheckpointError, decode_devices, encode_devices

NOWHERE = '{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}'  # noqa: E501 - a kubelet's file


def test_a_kubelets_file_is_read_and_written_again_byte_by_byte() -> None:
    found = decode_devices(NOWHERE)
    ((uid, held),) = found.items()
    ((name, (device,)),) = held.of(DeviceHoldings).devices
    assert (name, device.resource, device.id, device.nodes) == ("check", "nvidia.com/gpu", "tegra", NumaSet())
    assert (
        held.of(DeviceHoldings).answer_of("check", "nvidia.com/gpu")
        == b"\n\x1f\n\x16NVIDIA_VISIBLE_DEVICES\x12\x05tegra"
    )
    pods: PodMap[PodPromises] = PodMap()
    promises = Promises(pods=pods.put(uid, held))
    assert encode_devices(promises, (DevicePool("nvidia.com/gpu", (PoolDevice("tegra"),)),)) == NOWHERE


def test_without_devices_it_is_empty_and_read_as_that() -> None:
    text = encode_devices(Promises())
    assert text.startswith('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":')
    assert decode_devices(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        NOWHERE[:-2],
        NOWHERE.replace("tegra", "other"),
        NOWHERE.replace('"-1"', '"x"'),
        NOWHERE.replace("Ch8K", "\ufffdh8K"),
        "{}",
    ],
)
def test_what_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(DeviceCheckpointError):
        decode_devices(text)
