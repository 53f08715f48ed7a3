#!/bin/sh
# lintian of Debian 12 and of Debian 13 over a package, in boxes that have it installed (kept as layers).
#
#     packaging/lint-deb.sh [DEB] [bookworm|trixie]
#
# Exit status 1 when either finds an error or a warning; overrides stand, with their reasons, beside debian/control.
set -eu
deb=${1:-dist/llm-appliance.deb}
box() {
    python3 "$(dirname "$0")/box/box.py" "$@"
}

status=0
for distro in ${2:-bookworm trixie}; do
    name=lint-$distro-$$
    trap 'box rm "$name" >/dev/null 2>&1 || true' EXIT INT TERM
    if ! box up "$name" --distro "$distro" --network private --layer "lintian-$distro" 2>/dev/null; then
        box up "$name" --distro "$distro" --network host
        box sh "$name" 'apt-get update -qq && apt-get install -y -qq --no-install-recommends lintian man-db groff-base' \
            >/dev/null
        box snapshot "$name" "lintian-$distro"
        box up "$name" --distro "$distro" --network private --layer "lintian-$distro"
    fi
    box cp "$deb" "$name:/root/llm-appliance.deb"
    box sh "$name" lintian --version
    box sh "$name" "lintian --allow-root --fail-on error,warning /root/llm-appliance.deb" ||
        status=1
    box rm "$name"
done
exit $status
