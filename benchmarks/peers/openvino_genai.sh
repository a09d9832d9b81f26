#!/usr/bin/env bash
# OpenVINO GenAI's continuous batching as a peer for pinion-bench, behind the adapter openvino_server.py.
#
#   benchmarks/peers/openvino_genai.sh build                 install what openvino_genai.lock and torch.lock name
#                                                            (2.2 GB to download, 4.6 on disk, 3.8 of them torch)
#   benchmarks/peers/openvino_genai.sh convert HF_DIR OUT_DIR [bf16|f32|int8]   a model as OpenVINO's, by optimum-intel;
#                                                            bf16 keeps a checkpoint's 16 bits (as fp16 on disk)
#   benchmarks/peers/openvino_genai.sh serve OUT_DIR PORT [THREADS [FLAGS]]     in the foreground, until it is stopped
#   benchmarks/peers/openvino_genai.sh version               its version, in one line
#
#   PINION_CACHE    where it is kept   (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   a Python from 3.11   (default: python3)
#   KV_GIB          size of the KV cache in GiB   (default: 3)
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VERSION=$(sed -n 's/^openvino-genai==//p' "$HERE/openvino_genai.lock")
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}/openvino-genai-$VERSION
VENV=$CACHE/venv
# shellcheck source=benchmarks/peers/torch.sh
. "$HERE/torch.sh"

say() { printf '[openvino-genai] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Idempotent: what is there is not made again.
build() {
    # Its paged attention has kernels for AVX2 and for AVX-512.
    grep -qw avx2 /proc/cpuinfo || die "this CPU has no AVX2, which OpenVINO's continuous batching needs: run it on another machine"
    if ! cmp -s "$HERE/openvino_genai.lock" "$VENV/done"; then
        say "installing OpenVINO GenAI $VERSION (0.2 GB to download)"
        rm -rf "$VENV"
        mkdir -p "$CACHE"
        "${PINION_PYTHON:-python3}" -m venv "$VENV"
        "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$HERE/openvino_genai.lock"
    fi
    shared_torch "$VENV"
    "$VENV/bin/python" -c 'import openvino_genai'
    cp "$HERE/openvino_genai.lock" "$VENV/done"
    version
}

built() { [ -e "$VENV/done" ] || die "not built; run: $0 build"; }

version() {
    built
    printf 'OpenVINO GenAI %s, OpenVINO %s\n' "$VERSION" "$(sed -n 's/^openvino==//p' "$VENV/done")"
}

convert() { # convert HF_DIR OUT_DIR [TYPE]
    built
    local type=${3:-bf16} weights
    case $type in
    bf16) weights=fp16 ;;
    f32) weights=fp32 ;;
    int8) weights=int8 ;;
    *) die "TYPE is bf16, f32 or int8, and not $type" ;;
    esac
    rm -rf "$2.part"
    HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 PATH=$VENV/bin:$PATH "$VENV/bin/optimum-cli" export openvino --model "$1" \
        --task text-generation-with-past --weight-format "$weights" "$2.part" >&2
    # The adapter makes text with it.
    cp "$1/tokenizer.json" "$2.part/"
    rm -rf "$2"
    mv "$2.part" "$2"
    say "$2: $(du -sh "$2" | cut -f1), $type"
}

serve() { # serve OUT_DIR PORT [THREADS [FLAGS OF openvino_server.py]]
    built
    # The rows, the prompt tokens of a step and the cache of Pinion's defaults; its prefix cache is off.
    exec "$VENV/bin/python" "$HERE/openvino_server.py" "$1" --port "$2" --threads "${3:-2}" --rows 64 --batched-tokens 512 \
        --cache-gib "${KV_GIB:-3}" "${@:4}"
}

case "${1:-}" in
build) build ;;
convert) shift; convert "$@" ;;
serve) shift; serve "$@" ;;
version) version ;;
*) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
