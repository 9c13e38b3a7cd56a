#!/bin/sh
# Creates a virtual environment: tools/venv.sh PYTHON FOLDER
#
# Debian and Ubuntu split `ensurepip` off into a package of its own, so that a machine "with Python" cannot make a
# virtual environment. This gets that package where it may, and otherwise says exactly what to type.
set -eu

python=$1
folder=$2

fail() {
    echo "leasehold: $*" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "there is no '$python' here; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12"

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "'$python' is Python $version, and Leasehold needs 3.11 or newer; name another one: make PYTHON=python3.12"

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    package="python$version-venv"
    command -v apt-get >/dev/null 2>&1 ||
        fail "'$python' cannot make virtual environments: it lacks the modules 'venv' and 'ensurepip'; install them"
    if [ "$(id -u)" -eq 0 ]; then
        as_root=""
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        fail "'$python' cannot make virtual environments yet; type: sudo apt-get install $package"
    fi
    echo "Installing $package (Debian keeps it apart from Python)"
    $as_root apt-get -qq update
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends "$package" >/dev/null
fi

echo "Creating $folder with Python $version"
# A folder left by an interrupted or an older set-up must not leak into the new one.
rm -rf "$folder"
"$python" -m venv "$folder"
