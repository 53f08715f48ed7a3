#!/bin/sh
# The control plane's dependencies, unpacked: DIRECTORY/cp310 to cp313, from packaging/locks/control-3.XX.txt, hashes
# checked by pip. Needs python3-venv and, for the first time, network; a tree whose lock is unchanged is taken as it is.
#
#     control_trees.sh DIRECTORY
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:?usage: control_trees.sh DIRECTORY}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
# One build at a time fills it.
exec 9>"$directory/lock"
flock 9

pip() {
    # An own pip: what the host has may be absent, old or told not to be used.
    [ -x "$directory/pip/bin/python" ] || { rm -rf "$directory/pip" && python3 -m venv "$directory/pip"; }
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$directory/pip/bin/python" -m pip -q "$@" 2>"$directory/pip.log" ||
        { cat "$directory/pip.log" >&2; return 1; }
}

for lock in "$root"/packaging/locks/control-3.*.txt; do
    version=$(basename "$lock" .txt | cut -d- -f2)
    tree=$directory/cp$(echo "$version" | tr -d .)
    # The recipe counts as well as the lock: a change of either makes a new tree.
    stamp=$(cat "$lock" "$0" | sha256sum)
    [ "$(cat "$tree.stamp" 2>/dev/null)" = "$stamp" ] && continue
    echo "dependencies for Python $version"
    rm -rf "$tree" "$tree.stamp" "$tree.new" "$tree.sdist"
    grep -v '^sdnotify==' "$lock" >"$tree.wheels.txt"
    grep '^sdnotify==' "$lock" >"$tree.sdist.txt"
    pip install --target "$tree.new" --no-deps --no-compile --require-hashes --only-binary :all: \
        --python-version "$version" --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 \
        -r "$tree.wheels.txt"
    # No wheel of it exists; the source is one file.
    pip download -d "$tree.sdist" --no-deps --require-hashes --no-binary :all: -r "$tree.sdist.txt"
    mkdir "$tree.new/sdnotify"
    tar -xOzf "$tree.sdist"/sdnotify-*.tar.gz --wildcards 'sdnotify-*/sdnotify/__init__.py' \
        >"$tree.new/sdnotify/__init__.py"
    # What no program needs: the packages' own tests, sources of their extensions, stubs, scripts, and what pip would
    # need. Licences are in the package's copyright file.
    rm -rf "$tree.new/bin"
    # libyaml in one more binary: now and then a compose file is read, and that goes without it.
    rm -rf "$tree.new/_yaml" "$tree.new"/yaml/_yaml*.so
    find "$tree.new" -type d \( -name tests -o -name test -o -name __pycache__ -o -name '.hash' -o -name '*.dist-info' \
        -o -name docs \) -prune -exec rm -rf {} +
    find "$tree.new" -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.pyi' -o -name '*.c' \
        -o -name '*.h' -o -name '*.hash' -o -name py.typed \) -delete
    find "$tree.new" -type d -empty -delete
    chmod -R u=rwX,go=rX "$tree.new"
    find "$tree.new" -name '*.so' -exec chmod 0644 {} +
    rm -rf "$tree.sdist" "$tree.sdist.txt" "$tree.wheels.txt"
    mv "$tree.new" "$tree"
    echo "$stamp" >"$tree.stamp"
done
