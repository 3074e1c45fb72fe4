#!/bin/sh
# Installs what the tests on emulated hosts and under SLURM need: SLURM with its PMIx plugin, and the
# tools of networks and namespaces. Needs root on Debian; elsewhere it says why it cannot, exit status 1.
#
# Nothing is started: the tests have daemons of their own, and Debian's must not start either.
set -eu

needed="slurm-wlm munge libpmix-dev iproute2 procps util-linux gcc libc6-dev"
installed() { dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^.i'; }

refuse() { echo "cannot install $missing: $*" >&2; exit 1; }

missing=
for package in $needed; do
    installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || refuse "there is no apt-get"
[ "$(id -u)" = 0 ] || refuse "it needs root"
# A package that finds this file starts no service.
[ -e /usr/sbin/policy-rc.d ] || {
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    trap 'exit 1' INT TERM
}
export DEBIAN_FRONTEND=noninteractive
{ apt-get -qq update && apt-get -qq install --no-install-recommends $missing; } >&2 || refuse "apt-get failed"
