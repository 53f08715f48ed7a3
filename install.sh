#!/bin/sh
# From a clone to a real answer. On a machine that runs systemd it installs the package onto it; elsewhere it boots a
# Debian machine in a container ("box") and installs there.
#
#   ./install.sh              do it; asks nothing, can be run again
#   ./install.sh --dry-run    say what would be done
#   ./install.sh --remove     take the box (or the package) away again
set -eu
cd "$(dirname "$0")"
if ! command -v python3 >/dev/null 2>&1; then
    if [ "${1:-}" = --dry-run ]; then
        echo "would install python3 first: apt-get install python3-minimal"
        exit 0
    fi
    apt-get -qq update && apt-get -qq install -y --no-install-recommends python3-minimal python3 >/dev/null
fi
exec python3 packaging/box/install.py "$@"
