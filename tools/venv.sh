#!/bin/sh
# Makes the virtual environment: tools/venv.sh FOLDER
# Takes the first Python that is new enough: $PYTHON, python3, python3.14, ... python3.10.
# Leaves nothing half-made behind.
set -eu

folder=$1
new_enough='import sys; sys.exit(sys.version_info < (3, 10))'

usable() {
    "$folder/bin/python" -c "$new_enough" 2>/dev/null &&
        "$folder/bin/python" -m pip --version >/dev/null 2>&1
}

if usable; then
    exit 0
fi

python=
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$new_enough" 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    found=$(python3 --version 2>/dev/null || echo none)
    echo "Python 3.10 or newer is needed; found: $found." \
        "Install one, or name one: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi

log=$(mktemp)
extra=
trap 'rm -rf "$log" "$extra"' EXIT

try() {
    rm -rf "$folder"
    "$@" "$folder" >"$log" 2>&1 && usable
}

# Debian and Ubuntu ship Python without what `venv` needs; virtualenv brings its own.
try "$python" -m venv && exit 0
try "$python" -m virtualenv && exit 0
extra=$(mktemp -d)
if "$python" -m pip install --quiet --target "$extra" virtualenv >"$log" 2>&1 &&
    try env PYTHONPATH="$extra" "$python" -m virtualenv; then
    exit 0
fi
rm -rf "$folder"
echo "$python cannot make a virtual environment ($(tail -n 1 "$log"))." \
    "On Debian and Ubuntu: apt-get install -y python3-venv" >&2
exit 1
