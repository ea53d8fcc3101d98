# Shell functions about the node, read by install.sh and uninstall.sh, and part of the Debian package's scripts (see debian/rules),
# which must work where the program is not there yet, or not any more.

# Whether any process of a pod runs.
pods_run() {
    group=$(systemctl show --property ControlGroup --value nodeagent-pods.service 2>/dev/null) || return 1
    [ -n "$group" ] || return 1
    for events in "/sys/fs/cgroup$group"/pod*/cgroup.events "/sys/fs/cgroup$group"/burstable/cgroup.events "/sys/fs/cgroup$group"/besteffort/cgroup.events "/sys/fs/cgroup$group"/shared/cgroup.events; do
        [ -e "$events" ] && grep -q '^populated 1' "$events" && return 0
    done
    return 1
}

# Whether the program is the Debian package's, and its files dpkg's.
is_packaged() {
    [ "$(dpkg-query --show --showformat '${db:Status-Status}' nodeagent 2>/dev/null)" = installed ]
}

# Whether `make install` was here. (A unit that somebody has masked is a link there, to /dev/null.)
is_made() {
    [ -f /etc/systemd/system/nodeagent.service ]
}

# Give a directory what an agent is configured with, and take the sample given where nothing is yet: whole, or not at all.
ensure_configuration() {
    install -d -m 755 "$1" "$1/manifests"
    [ -e "$1/config.yaml" ] || { install -m 644 "$2" "$1/.config.yaml.new" && mv "$1/.config.yaml.new" "$1/config.yaml"; }
}

# Its members may ask the agent's socket.
ensure_group() {
    getent group nodeagent >/dev/null || groupadd --system nodeagent
}

# Remove what is kept over an installation's end: configuration and manifests (in the directory given), state, group.
forget() {
    rm -rf "$1" /var/lib/nodeagent /var/lib/nodeagent-pods /run/nodeagent /run/nodeagent-pods
    ! getent group nodeagent >/dev/null || groupdel nodeagent
}
