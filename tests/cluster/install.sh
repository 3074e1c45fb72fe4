#!/bin/sh
# install.sh [PACKAGE...]   Installs the packages that emulated hosts need, and those that are named.
# Needs root on Debian; elsewhere it says why it cannot, exit status 1. No service is started.
set -eu

refuse() {
    echo "cannot install $*" >&2
    exit 1
}

missing=
for package in iproute2 procps util-linux gcc libc6-dev "$@"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^.i' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || refuse "$missing: there is no apt-get"
[ "$(id -u)" = 0 ] || refuse "$missing: it needs root"
# Packages ask this program whether they may start their services.
asked=/usr/sbin/policy-rc.d
[ -e $asked ] || {
    trap 'rm -f $asked' EXIT
    trap 'exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >$asked
    chmod +x $asked
}
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # several words
{ apt-get -qq update && apt-get -qq install --no-install-recommends $missing; } >&2 ||
    refuse "$missing: apt-get failed"
