#!/usr/bin/env bash
# The pages in a headless Chromium, against a service that runs already. Starts no service itself.
#
#   BASE_URL=http://127.0.0.1:8000 ENGINE_PID=123 crates/testkit/browser/run.sh chat
#   BASE_URL=http://127.0.0.1:8000 KEY=secret crates/testkit/browser/run.sh key
#   BASE_URL=http://127.0.0.1:8000 crates/testkit/browser/run.sh pooled
#
#   PINION_CACHE    where the client is installed    (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   CHROMIUM        the browser                      (default: chromium, chromium-browser or google-chrome on PATH)
#   SHOTS           folder for screenshots           (default: none are made)
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}
PUPPETEER=24.43.1
: "${BASE_URL:?names the service, such as http://127.0.0.1:8000}"
export BASE_URL

CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[ -n "$CHROMIUM" ] || { echo "[browser] there is no Chromium; install the package chromium or set CHROMIUM" >&2; exit 1; }
command -v npm >/dev/null || { echo "[browser] there is no npm; install Node 20 or later" >&2; exit 1; }
export CHROMIUM

folder=$CACHE/puppeteer-core-$PUPPETEER
if [ ! -d "$folder" ]; then
    echo "[browser] installing puppeteer-core $PUPPETEER" >&2
    mkdir -p "$CACHE"
    part=$(mktemp -d "$folder.XXXXXX")
    npm install --silent --no-audit --no-fund --prefix "$part" "puppeteer-core@$PUPPETEER" >&2 || { rm -rf "$part"; exit 1; }
    mv -T "$part" "$folder" 2>/dev/null || rm -rf "$part"
fi
NODE_FOLDER=$folder exec node "$HERE/${1:?chat, key or pooled}.mjs"
