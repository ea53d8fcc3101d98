"""`make install` on a node that never had nodeagent, again as an upgrade, and `make uninstall`; and the Debian package: in the tree of the
guests, where no systemd runs, as when an image is built, and nothing is emulated.

In guests, test_documentation.py and test_debian_package.py do the same in their long form.
"""

from pathlib import Path

import pytest

from integration.guest.base import VENV, base_of
from integration.guest.debian_package import HIGHER_VERSION, debian_packages
from integration.guest.images import NOT_INSTALLED, guest_image, install_script, read_project, write_files
from integration.guest.releases import DEBIAN_12, DEBIAN_13, Release
from integration.guest.trees import in_copy_of
from integration.node import CONFIG

pytestmark = pytest.mark.whole

IN_A_TREE = f"""
    rm -rf {VENV}
    {install_script()}
    nodeagent --version
    echo '# mine' >>{CONFIG}
    {install_script()}
    nodeagent --version
    test "$(tail -n 1 {CONFIG})" = '# mine'
    make --directory=/usr/src/nodeagent uninstall PURGE=1
    find / -xdev -name '*nodeagent*' -not -path '/usr/src/*' | tee /tmp/left
    getent group nodeagent | tee -a /tmp/left
    test ! -s /tmp/left
"""

PACKAGED = f"""
    sed -i /path-exclude/d /etc/dpkg/dpkg.cfg.d/*
    rm -rf /opt/nodeagent
    dpkg --install /mnt/package.deb
    dpkg --verify nodeagent | tee /tmp/differs
    test ! -s /tmp/differs
    nodeagent check --help >/dev/null
    test -e /lib/systemd/system/nodeagent-launcher.service
    echo '# mine' >>{CONFIG}
    dpkg --install /mnt/higher.deb
    test "$(nodeagent --version)" = 'nodeagent {HIGHER_VERSION}'
    test "$(tail -n 1 {CONFIG})" = '# mine'
    dpkg --purge nodeagent
    find / -xdev -name '*nodeagent*' -not -path '/tmp/*' | tee /tmp/left
    getent group nodeagent | tee -a /tmp/left
    test ! -s /tmp/left
"""


@pytest.mark.parametrize("release", [DEBIAN_12, pytest.param(DEBIAN_13, marks=pytest.mark.long)], ids=str)
def test_it_comes_is_upgraded_and_goes_without_a_trace(release: Release, tmp_path: Path) -> None:
    guest_image(release)
    base = base_of(release)
    write_files(read_project("nodeagent", NOT_INSTALLED), tmp_path)
    in_copy_of(base.root, IN_A_TREE, mounts=((base.wheels, "/mnt"), (tmp_path, "/usr/src")))


@pytest.mark.parametrize("release", [DEBIAN_12, pytest.param(DEBIAN_13, marks=pytest.mark.long)], ids=str)
def test_a_package_comes_is_upgraded_and_goes_without_a_trace(release: Release) -> None:
    packages = debian_packages(release)
    in_copy_of(base_of(release).root, PACKAGED, mounts=((packages.directory, "/mnt"),))
