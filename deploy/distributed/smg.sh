#!/usr/bin/env bash
# SMG in front of two replicas, from nothing: installs it, then measures (check.py).
#
#   deploy/distributed/smg.sh [--streams N] [--only MEASURE ...]
#
# PINION names the program to test.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
VERSION=1.13.0
install "smg-$VERSION" "smg==$VERSION"
exec "$VENV/bin/python" "$HERE/check.py" smg --router "$VENV/bin/smg" --version "$VERSION" --pinion "$(pinion_program)" "$@"
