#!/bin/sh
# Remove nodeagent from this host. Refuses while pods run; STOP_PODS=1 stops them first. Run by `make uninstall`.
# Configuration and state stay, unless PURGE=1.
set -eu
. "$(dirname "$0")/node.sh"
units=${UNITS:-/etc/systemd/system}
etc=${ETC:-/etc/nodeagent}
bin=${BIN:-/usr/local/bin}
share=${SHARE:-$(dirname "$bin")/share}
fish=${FISH:-/etc/fish/completions}
prefix=${PREFIX:-$(sed -n 's|^ExecStart=\(.*\)/bin/nodeagent run.*|\1|p' "$units/nodeagent.service" 2>/dev/null || true)}
prefix=${prefix:-/opt/nodeagent}

if [ "$(id -u)" != 0 ]; then
    echo "uninstall: must be root" >&2
    echo "hint: sudo make uninstall" >&2
    exit 1
fi
if is_packaged; then
    echo "uninstall: nodeagent is here as a Debian package" >&2
    echo "hint: sudo apt-get remove nodeagent" >&2
    exit 1
fi

# By itself it tells each step, and ends pods in order. Should it not be able to, the end of the units does what it would have done.
release() {
    [ -x "$bin/nodeagent" ] || return 0
    "$bin/nodeagent" release --all --config "$etc/config.yaml" "$@" || echo "uninstall: systemd ends what is left" >&2
}

if pods_run; then
    if [ "${STOP_PODS:-0}" != 1 ]; then
        echo "uninstall: pods are running (see: nodeagent inspect)" >&2
        echo "hint: remove their manifests and wait, or stop them with: sudo make uninstall STOP_PODS=1" >&2
        exit 1
    fi
    release
fi
systemctl disable --now nodeagent.service 2>/dev/null || true
[ "${PURGE:-0}" != 1 ] || release --purge
# the launcher goes with the pods' unit, after the grace period of every container that is still there
systemctl disable nodeagent-launcher.service 2>/dev/null || true
systemctl disable --now nodeagent-pods.service 2>/dev/null || true
systemctl clean --what=runtime nodeagent.service 2>/dev/null || true
rm -f "$share"/man/man8/nodeagent.8 "$share"/man/man8/nodeagent-*.8
rm -f "$share/bash-completion/completions/nodeagent" "$share/zsh/site-functions/_nodeagent" "$fish/nodeagent.fish"
# only what the installation has made there; what tells so goes last, for another run after one that was cut short
if [ -e "$prefix/pyvenv.cfg" ]; then
    find "$prefix" -mindepth 1 -maxdepth 1 ! -name pyvenv.cfg -exec rm -rf {} +
    rm -rf "$prefix"
fi
rm -f "$bin/nodeagent" "$units/nodeagent-launcher.service" "$units/nodeagent-pods.service"
rm -f "$units/nodeagent.service" # the last, as it tells the prefix
[ -d /run/systemd/system ] && systemctl daemon-reload
if [ "${PURGE:-0}" = 1 ]; then
    forget "$etc"
    echo "nodeagent is gone, with its configuration and state"
else
    echo "nodeagent is gone; configuration and state are kept in $etc and /var/lib/nodeagent (remove them with PURGE=1)"
fi
