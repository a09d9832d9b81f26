#!/usr/bin/env bash
# Traces as other projects read them. Starts a server with the fake model, sends it requests with and without a
# `traceparent`, and holds every export against the classes that OpenTelemetry generates from its protobuf, strictly:
# no unknown field, and the same JSON again. Rotel, a collector in Rust, takes the export and sends it on as protobuf:
# these must be the same spans. Then every span must have the right parent. About ten seconds.
#
#   benchmarks/checks/otlp.sh [PROGRAM]     default: target/release/pinion, else target/debug/pinion
#
#   PINION_CACHE    where the tools are installed  (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   the Python that makes their environment  (default: python3)
#
# Rotel is there for x86-64 and Python 3.10 to 3.13; elsewhere the check says so and goes without it.
set -euo pipefail

PROTO=1.45.2 PROTOBUF=7.36.2 ROTEL=0.0.1a15
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}
PYTHON=${PINION_PYTHON:-python3}
FOLDER=$CACHE/otlp-$PROTO-$ROTEL

if ! [ -e "$FOLDER/installed" ]; then
    echo "installing opentelemetry-proto $PROTO and rotel $ROTEL into $FOLDER" >&2
    mkdir -p "$CACHE"
    "$PYTHON" -m venv --clear "$FOLDER"
    pip=("$FOLDER/bin/pip" install --quiet --disable-pip-version-check)
    "${pip[@]}" "opentelemetry-proto==$PROTO" "protobuf==$PROTOBUF" || {
        echo "pip could not install opentelemetry-proto $PROTO" >&2
        exit 2
    }
    "${pip[@]}" --no-deps --only-binary :all: "rotel==$ROTEL" || echo "rotel $ROTEL is not there for this machine" >&2
    touch "$FOLDER/installed"
fi

program=${1:-}
for profile in release debug; do
    own=$HERE/../../target/$profile/pinion
    if [ -z "$program" ] && [ -x "$own" ]; then program=$own; fi
done
[ -n "$program" ] || {
    echo "no pinion is built; name the program" >&2
    exit 2
}
rotel=$(find "$FOLDER" -name rotel-agent -type f | head -n 1)
exec "$FOLDER/bin/python" "$HERE/otlp.py" "$program" ${rotel:+"$rotel"}
