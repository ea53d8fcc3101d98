#!/bin/sh
# Build the Debian package for the Debian release that this runs on, into dist, with Debian's tools. Run by `make deb`.
# WHEELS: a directory of wheels to build it from without a network.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
needed="debhelper dpkg-dev python3-venv"

apt() {
    DEBIAN_FRONTEND=noninteractive $root apt-get "$@"
}

if ! dpkg --status $needed >/dev/null 2>&1; then
    root=
    [ "$(id -u)" = 0 ] || root=sudo
    echo "Building a package needs these Debian packages, which are installed now, as root: $needed" >&2
    apt install --quiet --yes --no-install-recommends $needed || { apt update --quiet && apt install --quiet --yes --no-install-recommends $needed; }
fi
# built elsewhere: the result goes beside the sources, and the checkout stays as it is
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
mkdir "$build/nodeagent"
for part in nodeagent systemd scripts examples docs contrib debian pyproject.toml README.md CHANGELOG.md LICENSE; do
    cp -R "$here/$part" "$build/nodeagent/"
done
cd "$build/nodeagent"
dpkg-buildpackage --build=binary --no-sign --ignore-builtin-builddeps
install -d "$here/dist"
mv "$build"/*.deb "$here/dist/"
ls "$here/dist"/*.deb
