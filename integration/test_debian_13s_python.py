"""The tests of the host on Debian 13's own Python, in the tree that its guests are built from: emulated, they would take hours."""

import pytest

from integration.guest.base import base_of, dependencies_of_tests, download_wheels
from integration.guest.cache import REPOSITORY
from integration.guest.images import guest_image
from integration.guest.releases import DEBIAN_13
from integration.guest.trees import in_copy_of

RUN = f"""
    mount -t devpts devpts /dev/pts
    mount -t sysfs sysfs /sys
    mkdir /srv/checkout && cd /srv/checkout
    tar --create --directory=/mnt --exclude=./.cache --exclude=./.venv . | tar --extract
    python=/opt/nodeagent/bin/python
    $python -m pip install --quiet --no-index --find-links /media pytest hypothesis pytest-xdist pytest-rerunfailures grpcio-tools
    echo /srv/checkout >/opt/nodeagent/lib/python{DEBIAN_13.python}/site-packages/checkout.pth
    $python -m pytest --quiet --numprocesses auto tests --ignore tests/project --ignore tests/harness
"""
"""`tests/project` is about the checkout, `tests/harness` about guests."""


@pytest.mark.long
def test_the_tests_of_the_host_pass_on_debian_13s_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    guest_image(DEBIAN_13)  # the tree is made for it
    wheels = tmp_path_factory.mktemp("wheels")
    download_wheels(DEBIAN_13, wheels, dependencies_of_tests())
    in_copy_of(base_of(DEBIAN_13).root, RUN, mounts=((REPOSITORY, "/mnt"), (wheels, "/media")))
