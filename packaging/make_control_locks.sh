#!/bin/sh
# Makes packaging/locks/control-3.XX.txt anew: the newest versions that pyproject.toml allows, for each Python that the
# package carries dependencies for. One file a line, the one that fits x86-64 Linux, with its hash as the index
# publishes it (pip refuses another). Needs `uv` on PATH or in .venv, and network.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
for version in 3.10 3.11 3.12 3.13; do
    uv pip compile -q --upgrade --no-annotate --no-header --generate-hashes --python-version "$version" \
        --python-platform x86_64-manylinux_2_28 pyproject.toml -o "$scratch/full.txt"
    # sdnotify has no wheel; the rest must have one.
    "$scratch/venv/bin/python" -m pip -q download --no-deps --require-hashes -d "$scratch/$version" \
        --python-version "$version" --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 \
        --only-binary :all: -r /dev/stdin <<-EOF
	$(awk '/^[a-z]/ {skip = /^sdnotify==/} !skip' "$scratch/full.txt")
	EOF
    {
        echo "# Python $version, x86-64 Linux. Made by packaging/make_control_locks.sh; hashes are of one file each."
        for wheel in "$scratch/$version"/*.whl; do
            name=$(basename "$wheel" | cut -d- -f1 | tr _ -)
            release=$(basename "$wheel" | cut -d- -f2)
            echo "$name==$release --hash=sha256:$(sha256sum "$wheel" | cut -d' ' -f1)"
        done
        grep -A9 '^sdnotify==' "$scratch/full.txt" | tr -d '\\\n' | sed -E 's/(sha256:[0-9a-f]+).*/\1/; s/ +/ /g'
        echo
    } >"packaging/locks/control-$version.txt"
    echo "packaging/locks/control-$version.txt: $(grep -c == "packaging/locks/control-$version.txt") packages"
done
