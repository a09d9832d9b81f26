#!/usr/bin/env bash
# Pinion under Ray Serve on four nodes of one machine, from nothing: installs Ray, then measures (ray_check.py).
#
#   deploy/distributed/ray_serve.sh [--only gone|scale ...]
#
# PINION names the program to test.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
command -v setpriv >/dev/null || die "setpriv (of util-linux) is missing: it ends a service with its Ray worker"
install ray-2.60.0 --requirement "$HERE/ray_serve.lock"
exec "$VENV/bin/python" "$HERE/ray_check.py" --pinion "$(pinion_program)" "$@"
