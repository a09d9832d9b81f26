#!/usr/bin/env bash
# llama-server as a peer for pinion-bench. What is built and driven is llama.cpp's own C++ server (tools/server of the
# copy that the sdist of llama-cpp-python 0.3.36 carries), not the package's Python server (`python -m llama_cpp.server`),
# which takes one request at a time.
#
#   benchmarks/peers/llama_server.sh build                       download, configure, compile; minutes on two cores
#   benchmarks/peers/llama_server.sh convert HF_DIR OUT [bf16|f32|q8_0]   a folder of GPT-2, Llama or Qwen3 as GGUF
#   benchmarks/peers/llama_server.sh serve GGUF PORT [THREADS [SLOTS [FLAGS]]]   in the foreground, until it is stopped
#   benchmarks/peers/llama_server.sh version                     its version, in one line
#
#   PINION_CACHE    where it is kept   (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   the Python         (default: python3)
set -euo pipefail

VERSION=0.3.36
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}/llama-$VERSION
SOURCE=$CACHE/llama_cpp_python-$VERSION/vendor/llama.cpp
SERVER=$CACHE/build/bin/llama-server

say() { printf '[llama-server] %s\n' "$*" >&2; }

# Idempotent: what is there is not made again.
venv() {
    if [ ! -e "$CACHE/venv/done" ]; then
        mkdir -p "$CACHE"
        "${PINION_PYTHON:-python3}" -m venv "$CACHE/venv"
        "$CACHE/venv/bin/pip" install --quiet --disable-pip-version-check cmake==4.4.4 ninja==1.13.2 gguf==0.17.1 numpy
        touch "$CACHE/venv/done"
    fi
}

build() {
    venv
    if [ ! -e "$SOURCE/CMakeLists.txt" ]; then
        say "downloading llama-cpp-python $VERSION (77 MB)"
        (cd "$CACHE" && venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python "llama-cpp-python==$VERSION" &&
            tar xzf "llama_cpp_python-$VERSION.tar.gz")
    fi
    if [ ! -x "$SERVER" ]; then
        say "compiling llama-server for this CPU"
        PATH=$CACHE/venv/bin:$PATH cmake -S "$SOURCE" -B "$CACHE/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
            -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
            -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >"$CACHE/configure.log"
        PATH=$CACHE/venv/bin:$PATH nice -n 10 cmake --build "$CACHE/build" --target llama-server -j "${JOBS:-2}"
    fi
    "$SERVER" --version 2>&1 | head -n 2 >&2
}

convert() { # convert HF_DIR OUT [TYPE]
    venv
    "$CACHE/venv/bin/python" "$HERE/hf_to_gguf.py" "$1" "$2" --type "${3:-bf16}"
}

version() {
    [ -x "$SERVER" ] || { say "not built; run: $0 build"; exit 1; }
    # It writes "version: NUMBER (COMMIT)" to standard error.
    printf 'llama.cpp %s, of llama-cpp-python %s\n' "$("$SERVER" --version 2>&1 | sed -n 's/^version: //p')" "$VERSION"
}

serve() { # serve GGUF PORT [THREADS [SLOTS [FLAGS OF llama-server]]]
    [ -x "$SERVER" ] || { say "not built; run: $0 build"; exit 1; }
    local threads=${3:-2} slots=${4:-32}
    # Each slot gets the model's whole context, as a Pinion sequence does; no warm prompt cache on disk or in RAM, no logs
    # per request. Continuous batching is the default.
    exec "$SERVER" --model "$1" --host 127.0.0.1 --port "$2" --threads "$threads" --threads-batch "$threads" \
        --parallel "$slots" --ctx-size $((slots * 1024)) --cache-ram 0 --log-disable "${@:5}"
}

case "${1:-}" in
build) build ;;
convert) shift; convert "$@" ;;
serve) shift; serve "$@" ;;
version) version ;;
*) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
