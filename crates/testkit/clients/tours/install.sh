#!/usr/bin/env bash
# Installs a client of a tour with everything that it needs, all versions pinned, and prints the folder.
#
#   crates/testkit/clients/tours/install.sh NAME   a file of requirements/, or node
#
#   PINION_CACHE    where it is installed    (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   the Python, from 3.11 on (default: python3)
#
# A file of requirements is made with `uv pip compile --no-annotate --no-header`.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}

install_python() { # install_python FOLDER
    PIP_ROOT_USER_ACTION=ignore "${PINION_PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-warn-script-location \
        --no-deps --target "$1" --requirement "$wanted"
}

install_node() { # install_node FOLDER
    cp "$HERE"/requirements/node/*.json "$1"
    npm ci --silent --no-audit --no-fund --prefix "$1"
}

wanted=$HERE/requirements/$1.txt install=install_python
if [ "$1" = node ]; then
    wanted=$HERE/requirements/node/package-lock.json install=install_node
fi
folder=$CACHE/tours/$1-$(sha256sum "$wanted" | cut -c1-12)
if [ ! -d "$folder" ]; then
    mkdir -p "$CACHE/tours"
    # What is complete is moved into place: a broken download is not taken for an installation.
    part=$(mktemp -d "$folder.XXXXXX")
    printf '[tours] installing %s\n' "$1" >&2
    "$install" "$part" >&2 || { rm -rf "$part"; exit 1; }
    mv -T "$part" "$folder" 2>/dev/null || rm -rf "$part"
fi
echo "$folder"
