#!/bin/sh
# Install nodeagent on this host, or upgrade it: a virtual environment, three systemd units, a sample configuration, the documents.
# Run by `make install`, and by debian/rules for what is in the Debian package.
# PREFIX: where the environment goes. WHEELS: a directory of wheels to install from without a network.
# DESTDIR: a directory that stands for / while a package is made: everything goes below it, and this host stays as it is.
set -eu
umask 022 # root's may be narrower, and not only root runs what is installed
prefix=${PREFIX:-/opt/nodeagent}
units=${UNITS:-/etc/systemd/system}
etc=${ETC:-/etc/nodeagent}
bin=${BIN:-/usr/local/bin}
share=${SHARE:-$(dirname "$bin")/share}
fish=${FISH:-/etc/fish/completions}
here=$(cd "$(dirname "$0")/.." && pwd)
root=${DESTDIR:-}
. "$here/scripts/node.sh"

refuse() {
    echo "install: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

if [ -z "$root" ]; then
    [ "$(id -u)" = 0 ] || refuse "must be root" "sudo make install"
    ! is_packaged || refuse "nodeagent is here as a Debian package" "sudo apt-get remove nodeagent, or upgrade the package"
fi
case $prefix in
/*) ;;
*) refuse "PREFIX must be an absolute path, not '$prefix'" "sudo make install PREFIX=/opt/nodeagent" ;;
esac
case $prefix in
*[!A-Za-z0-9/._+-]*) refuse "PREFIX may have letters, digits and / . _ + - only, not '$prefix'" "it is written into the units" ;;
esac
venv=$root$prefix
if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    refuse "PREFIX $prefix has other things in it" "name a directory of its own: uninstalling removes it whole"
fi

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" || refuse "python3 cannot make a virtual environment" "apt-get install python3-venv"
fi
# built elsewhere: in a checkout, root's build directory would stay, and modules that are gone would come back from it
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cp -R "$here/nodeagent" "$here/pyproject.toml" "$here/README.md" "$here/LICENSE" "$build/"
if [ -n "${WHEELS:-}" ]; then
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$WHEELS" --upgrade "$build"
else
    "$venv/bin/pip" install --quiet --disable-pip-version-check --upgrade "$build"
fi
# instead of pip's own
sed "s|/opt/nodeagent/|$prefix/|g" "$here/scripts/command.py" >"$venv/bin/nodeagent"
chmod 755 "$venv/bin/nodeagent"
if [ -n "$root" ]; then
    grep -rlIF "$venv" "$venv/bin" "$venv/pyvenv.cfg" | xargs -r sed -i "s|$venv|$prefix|g"
fi
rm -rf "$venv/share/nodeagent"
install -d "$venv/share/nodeagent"
cp -R "$here/README.md" "$here/docs" "$here/examples" "$here/contrib" "$venv/share/nodeagent/"
chmod -R u=rwX,go=rX "$venv/share/nodeagent"

if [ -z "$root" ]; then
    # not in a package: dpkg would purge its files there under whatever uses them by then, asking nobody
    ensure_group
    ensure_configuration "$etc" "$here/examples/config.yaml"
fi
install -d -m 755 "$root$bin" "$root$units"
before=$(readlink "$root$bin/nodeagent" || true)
for unit in "$here"/systemd/*.service; do
    sed "s|/opt/nodeagent/|$prefix/|g" "$unit" >"$build/unit"
    install -m 644 "$build/unit" "$root$units/$(basename "$unit")"
done
ln -sf "$prefix/bin/nodeagent" "$root$bin/nodeagent"
"$venv/bin/python" -I -m nodeagent.cli.man_pages "$root$share" "$root$fish" "$prefix/share/nodeagent" # and what makes shells complete its words
[ -z "$root" ] || exit 0
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
echo "nodeagent is installed in $prefix; configuration: $etc/config.yaml, manifests: $etc/manifests, documents: $prefix/share/nodeagent"
if [ -z "$before" ]; then
    echo "start it with: systemctl enable --now nodeagent"
else
    echo "switch to it with: systemctl restart nodeagent && systemctl reload nodeagent-launcher (pods keep running)"
fi
