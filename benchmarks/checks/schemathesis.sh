#!/usr/bin/env bash
# Schemathesis on a running server: makes requests from the server's own /openapi.json, right and wrong ones, and
# holds every answer against that document. About a minute.
#
#   benchmarks/checks/schemathesis.sh [http://HOST:PORT] [more arguments of `st run`]
#
#   PINION_CACHE    where the tool is installed  (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   the Python that makes its environment  (default: python3)
#   PINION_API_KEY  sent as the key, if it is set
#
# A server without a model does as well: pinion serve DIR --backend fake
set -euo pipefail

VERSION=4.32.0
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}
PYTHON=${PINION_PYTHON:-python3}
FOLDER=$CACHE/schemathesis-$VERSION
URL=${1:-http://127.0.0.1:8000}
[ $# -eq 0 ] || shift

if ! [ -x "$FOLDER/bin/st" ]; then
    echo "installing schemathesis $VERSION into $FOLDER" >&2
    mkdir -p "$CACHE"
    "$PYTHON" -m venv "$FOLDER"
    "$FOLDER/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$VERSION" || {
        rm -rf "$FOLDER"
        echo "pip could not install schemathesis $VERSION" >&2
        exit 2
    }
fi

key=()
[ -z "${PINION_API_KEY:-}" ] || key=(--header "Authorization: Bearer $PINION_API_KEY")

# Not among the checks: positive_data_acceptance. What a field may be can depend on another one (stream_options needs
# stream, prompt and answer share the context), which a schema of fields does not say.
checks=not_a_server_error,status_code_conformance,content_type_conformance
checks+=,response_schema_conformance,negative_data_rejection,unsupported_method
# Routes for models that pool refuse whatever they get. /debug/trace answers when its up to 60 seconds are over.
skipped=(--exclude-path-regex '^/(v1/embeddings|(v[12]/)?rerank|(v1/)?score|pooling|classify|debug/trace)$')
cd "$(mktemp -d)"
exec "$FOLDER/bin/st" run "$URL/openapi.json" --url "$URL" "${key[@]}" --checks "$checks" --seed 1 \
    --phases examples,coverage,fuzzing --max-examples 50 "${skipped[@]}" "$@"
