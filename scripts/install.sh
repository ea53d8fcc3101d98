#!/bin/sh
# Install nodeagent on this host: a virtual environment, three systemd units, a sample configuration. Run by `make install`.
# PREFIX: where the environment goes. WHEELS: a directory of wheels to install from without a network.
set -eu
prefix=${PREFIX:-/opt/nodeagent}
units=${UNITS:-/etc/systemd/system}
etc=${ETC:-/etc/nodeagent}
here=$(cd "$(dirname "$0")/.." && pwd)

if [ "$(id -u)" != 0 ]; then
    echo "install: must be root" >&2
    echo "hint: sudo make install" >&2
    exit 1
fi

if [ ! -x "$prefix/bin/python" ]; then
    python3 -m venv "$prefix" || {
        echo "install: python3 cannot make a virtual environment" >&2
        echo "hint: apt-get install python3-venv" >&2
        exit 1
    }
fi
if [ -n "${WHEELS:-}" ]; then
    "$prefix/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$WHEELS" --upgrade "${SOURCE:-$here}"
else
    "$prefix/bin/pip" install --quiet --disable-pip-version-check --upgrade "${SOURCE:-$here}"
fi

getent group nodeagent >/dev/null || groupadd --system nodeagent
install -d -m 755 "$etc" "$etc/manifests" /usr/local/bin
[ -e "$etc/config.yaml" ] || install -m 644 "$here/examples/config.yaml" "$etc/config.yaml"
install -m 644 "$here"/systemd/*.service "$units/"
ln -sf "$prefix/bin/nodeagent" /usr/local/bin/nodeagent
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
echo "nodeagent is installed in $prefix; configuration: $etc/config.yaml, manifests: $etc/manifests"
echo "start it with: systemctl enable --now nodeagent"
