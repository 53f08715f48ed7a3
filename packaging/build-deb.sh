#!/bin/sh
# Builds the Debian package from a checkout: the same commit gives the same file.
#
#     packaging/build-deb.sh [--version VERSION] [--output FILE]
#
# VERSION: instead of the one in appliance/__init__.py (for tests of upgrades). FILE: dist/llm-appliance.deb.
# Installs nothing; says which Debian packages are missing. The first build fetches the control plane's dependencies,
# hash-pinned, into $LLM_APPLIANCE_CACHE (else llm-appliance in the user's cache directory); later ones need no network.
set -eu
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
version=
output=dist/llm-appliance.deb
while [ $# -gt 0 ]; do
    case $1 in
    --version) version=${2:?--version needs a value} && shift 2 ;;
    --output) output=${2:?--output needs a value} && shift 2 ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) echo "build-deb.sh: unknown argument $1" >&2 && exit 2 ;;
    esac
done

missing=
need() {
    command -v "$1" >/dev/null || missing="$missing $2"
}
need dh debhelper
need dpkg-buildpackage dpkg-dev
need cc build-essential
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
if [ -n "$missing" ]; then
    echo "build-deb.sh: missing; install with: apt-get install -y --no-install-recommends$missing" >&2
    exit 3
fi

[ -n "$version" ] || version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' appliance/__init__.py)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
cache=${LLM_APPLIANCE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llm-appliance}/control
packaging/control_trees.sh "$cache"

mkdir -p build
stage=$(mktemp -d "$root/build/deb.XXXXXX")
trap 'rm -rf "$stage"' EXIT
tree=$stage/llm-appliance
mkdir -p "$tree/site" "$tree/bin" "$tree/generator" "$tree/source"
cp -a packaging/debian "$tree/debian"
mkdir -p "$tree/debian/source"
echo "3.0 (native)" >"$tree/debian/source/format"
for cp in "$cache"/cp3??; do
    cp -a "$cp" "$tree/site/"
done
find "$tree/site" -name __pycache__ -prune -exec rm -rf {} +
# The code, without what Python left in it; of the texts inside, data only.
(cd appliance && find . -name __pycache__ -prune -o -type f ! -name README.md -print0 |
    xargs -0 cp --parents -t "$(mkdir -p "$tree/appliance" && echo "$tree/appliance")")
sed -i "s/^__version__ = .*/__version__ = \"$version\"/" "$tree/appliance/__init__.py"
cp packaging/llm-appliance "$tree/bin/"
cp systemd/llm-appliance-generator "$tree/generator/"
chmod 755 "$tree/bin/llm-appliance" "$tree/generator/llm-appliance-generator"
for unit in systemd/*.service systemd/*.socket systemd/*.target systemd/*.path; do
    cp "$unit" "$tree/debian/llm-appliance.$(basename "$unit")"
done
cp systemd/llm-appliance.sysusers systemd/llm-appliance.tmpfiles "$tree/debian/"
if [ -e systemd/llm-appliance.catalog ]; then
    cp systemd/llm-appliance.catalog "$tree/"
    echo "llm-appliance.catalog usr/lib/systemd/catalog" >>"$tree/debian/llm-appliance.install"
fi
cp etc/config.toml "$tree/"

# Documentation.
# (As CHANGELOG.md, dh_installchangelogs would take it for Debian's own.)
cp CHANGELOG.md "$tree/NEWS.md"
echo NEWS.md >"$tree/debian/llm-appliance.docs"
for readme in README.md README.zh-CN.md; do
    if [ -e "$readme" ]; then
        cp "$readme" "$tree/"
        echo "$readme" >>"$tree/debian/llm-appliance.docs"
    fi
done
mkdir -p "$tree/examples"
cp etc/reference.toml "$tree/examples/config.toml"
cp packaging/examples/* "$tree/examples/"
echo 'examples/*' >"$tree/debian/llm-appliance.examples"
mkdir "$tree/completion" && cp packaging/completion/* "$tree/completion/"
ls packaging/man/*.[1-8] | sed 's,^packaging/man,man,' >"$tree/debian/llm-appliance.manpages"
mkdir "$tree/man" && cp packaging/man/*.[1-8] "$tree/man/"

cat >"$tree/debian/changelog" <<EOF
llm-appliance ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- llm-appliance <llm-appliance@example.org>  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
EOF
find "$tree" -type d -exec chmod 755 {} +
find "$tree" -type f ! -perm -100 -exec chmod 644 {} +
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

(cd "$tree" && dpkg-buildpackage -b -us -uc) >"$stage/log" 2>&1 || {
    cat "$stage/log" >&2
    exit 1
}
mkdir -p "$(dirname "$output")"
mv "$stage"/llm-appliance_*.deb "$output"
echo "$output: version $version, $(stat -c %s "$output") bytes"
