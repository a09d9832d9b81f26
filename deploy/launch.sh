#!/usr/bin/env bash
# The one command: sets up what the model's device needs, builds, and serves on loopback.
#
#   deploy/launch.sh                         serve the demo model on http://127.0.0.1:8000
#   deploy/launch.sh --model DIR [flags]     serve a Hugging Face folder; flags as in docs/CONFIGURATION.md
#   deploy/launch.sh --device cuda [flags]   on an NVIDIA GPU (docs/GPU.md); without --device where there is one, else on the CPU
#   deploy/launch.sh --setup-only [--device cuda]    set up and build, then stop; needs no GPU
#
# PINION_CACHE and PINION_PYTHON say where downloads are kept and whose pip is used: deploy/setup.sh. PINION_BUILD=dev builds
# and serves the programs that tests use.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/cuda.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

# As `pinion serve` ends where the GPU cannot be used.
EXIT_DEVICE=9

# As the engine looks for it.
has_driver() { "$PYTHON" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; }
# As the configuration looks for it: containers see the host's driver without a device.
has_gpu() { { [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; } && compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

DEVICE=${PINION_DEVICE:-auto} OBJECT=${PINION_CUDA_OBJECT:-} MODEL_NAMED=${PINION_MODEL:+yes}${PINION_CONFIG:+yes} SETUP_ONLY='' FLAGS=()
read_flags() {
    # `launch.sh DIR`, as with `pinion serve DIR`.
    case "${1:-}" in [!-]*) MODEL_NAMED=yes ;; esac
    while [ $# -gt 0 ]; do
        case $1 in
        --setup-only) SETUP_ONLY=yes && shift && continue ;;
        --model | --model=* | --config | --config=*) MODEL_NAMED=yes ;;
        --device) DEVICE=${2:-} ;;
        --device=*) DEVICE=${1#--device=} ;;
        --cuda-object) OBJECT=${2:-} ;;
        --cuda-object=*) OBJECT=${1#--cuda-object=} ;;
        esac
        FLAGS+=("$1")
        shift
    done
}

no_driver="no NVIDIA driver is here: install NVIDIA driver 580 or newer; in a container start it with the NVIDIA runtime \
(docker --gpus all)"

# Before anything is downloaded or built: a GPU that is asked for has a driver.
check_device() {
    case $DEVICE in
    cuda | gpu)
        if [ -z "$SETUP_ONLY" ] && ! has_driver; then
            say "error: $no_driver, or serve with --device cpu"
            exit $EXIT_DEVICE
        fi
        ;;
    esac
}

set_up_device() {
    case $DEVICE in
    cuda | gpu) setup_cuda "$OBJECT" ;;
    auto)
        if has_gpu; then
            say "NVIDIA GPU found: setting up for it (--device cpu leaves that out)"
            setup_cuda "$OBJECT"
        fi
        ;;
    esac
}

build() {
    local programs=(launcher hub frontend tokenizer engine detokenizer doctor terminal)
    if [ "$PROFILE" = dev ]; then
        cargo build --locked --workspace --bins
    else
        say "building the release binaries (the first build takes several minutes)"
        cargo build --release --locked "${programs[@]/#/--package=pinion-}"
    fi
}

PROFILE=${PINION_BUILD:-release}
FOLDER=${CARGO_TARGET_DIR:-$ROOT/target}/${PROFILE/dev/debug}
read_flags "$@"
check_device
setup
cd "$ROOT"
set_up_device
build
if [ -n "$SETUP_ONLY" ]; then
    case $DEVICE in
    cuda | gpu) has_driver || say "set up for a GPU, and $no_driver" ;;
    esac
    say "set up; serve with: deploy/launch.sh"
    exit 0
fi
if [ -z "$MODEL_NAMED" ]; then
    FLAGS=(--model "$ROOT/deploy/demo-model" "${FLAGS[@]}")
fi
exec "$FOLDER/pinion" serve "${FLAGS[@]}"
