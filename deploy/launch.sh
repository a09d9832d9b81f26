#!/usr/bin/env bash
# The one command: sets up what the model's device needs, builds, and serves on loopback.
#
#   deploy/launch.sh                         serve the demo model on http://127.0.0.1:8000
#   deploy/launch.sh --model DIR [flags]     serve a Hugging Face folder; flags as in docs/CONFIGURATION.md
#   deploy/launch.sh --device cuda [flags]   on an NVIDIA GPU (docs/GPU.md); without --device on a GPU if there is one
#                                            that can be used, and on the CPU otherwise
#   deploy/launch.sh --setup-only [--device cuda]    set up and build, then stop; needs no GPU
#
# --backend torch computes with libtorch's operators. PINION_TORCH_CUDA=1 sets up libtorch's CUDA libraries as well as
# the CUDA object, for models that the object does not take.
#
# PINION_CACHE and PINION_PYTHON say where downloads are kept and whose pip is used: deploy/setup.sh. PINION_BUILD=dev
# builds and serves the programs that tests use.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

# As `pinion serve` ends where the GPU cannot be used.
EXIT_DEVICE=9
# The first driver for the CUDA that the object is built with.
DRIVER_MIN=580

# As the engine looks for it. Without a Python that can look, the engine is left to find out.
has_driver() {
    "$PYTHON" -c 'import ctypes' >/dev/null 2>&1 || return 0
    "$PYTHON" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' >/dev/null 2>&1
}
# As the configuration looks for it: containers see the host's driver without a device.
has_gpu() {
    { [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; } && compgen -G '/dev/nvidia[0-9]*' >/dev/null
}
# 580 of 580.95.05; nothing where the kernel module does not say it.
driver_major() {
    local file=${1:-/proc/driver/nvidia/version}
    sed -n 's/^NVRM version.*[[:space:]]\([0-9]\{3,\}\)\.[0-9.]*[[:space:]].*/\1/p' "$file" 2>/dev/null || true
}

FLAGS=() CONFIG='' SETUP_ONLY=''
read_flags() {
    local word
    for word in "$@"; do
        case $word in
        --setup-only) SETUP_ONLY=yes ;;
        *) FLAGS+=("$word") ;;
        esac
    done
    CONFIG=$(option config)
    DEVICE=$(option device)
    DEVICE=${DEVICE:-auto}
    OBJECT=$(option cuda-object)
}

# What `pinion serve` takes an option from: the last flag, else the variable, else the config file.
option() { # option NAME
    local flag=--$1 variable=PINION_${1//-/_} value='' previous='' word
    variable=${variable^^}
    for word in "${FLAGS[@]}"; do
        [ "$previous" != "$flag" ] || value=$word
        case $word in "$flag="*) value=${word#*=} ;; esac
        previous=$word
    done
    value=${value:-${!variable:-}}
    if [ -z "$value" ] && [ -r "$CONFIG" ]; then
        local key="[[:space:]]*\"\{0,1\}${1//-/[-_]}\"\{0,1\}[[:space:]]*"
        value=$(sed -n "s/^$key=[[:space:]]*[\"']\([^\"']*\)[\"'].*/\1/p" "$CONFIG" | tail -n 1)
    fi
    printf '%s\n' "$value"
}

names_model() {
    # `launch.sh DIR`, as with `pinion serve DIR`. What a config file leaves out, `pinion serve` asks for.
    case "${FLAGS[0]:-}" in [!-]*) return 0 ;; esac
    [ -n "$CONFIG$(option model)" ]
}

# Before anything is downloaded or built: an absolute path is there.
check_model() {
    local model
    model=$(option model)
    case "${FLAGS[0]:-}" in [!-]*) model=${FLAGS[0]} ;; esac
    case $model in /*) [ -e "$model" ] || die "the model $model: no such file or folder" ;; esac
}

no_driver="no NVIDIA driver is here: install NVIDIA driver $DRIVER_MIN or newer; in a container start it with the NVIDIA \
runtime (docker --gpus all)"

# Before anything is downloaded or built: a GPU that is asked for has a driver.
check_device() {
    case ${DEVICE,,} in
    cuda | gpu)
        if [ -z "$SETUP_ONLY" ] && ! has_driver; then
            say "error: $no_driver, or serve with --device cpu"
            exit $EXIT_DEVICE
        fi
        ;;
    esac
}

# For the backend that would compute there. As processes of their own: what fails there ends them alone.
set_up_gpu() {
    if [ "$(option backend)" != torch ]; then
        "$ROOT/deploy/cuda.sh" --serve "$OBJECT" || return
    elif [ -z "$OBJECT" ] && [ "$(option torch-kernels)" != off ]; then
        # Its kernels go between libtorch's operators, which need no other library and do without them.
        "$ROOT/deploy/cuda.sh" || [ "$(option torch-kernels)" != on ] || return
    fi
    if [ "$(option backend)" = torch ] || [ -n "${PINION_TORCH_CUDA:-}" ]; then
        "$ROOT/deploy/setup.sh" --cuda
    fi
}

# Sets up for a GPU that may be used. Whatever is missing, the CPU serves.
set_up_if_possible() {
    has_gpu || return 0
    # What the CPU serves in any case.
    case $(option quantization),$(option backend) in int8,* | int4,* | *,fake) return 0 ;; esac
    local major reason=''
    major=$(driver_major)
    if [ -n "$major" ] && [ "$major" -lt "$DRIVER_MIN" ]; then
        reason="the NVIDIA driver is of version $major, and $DRIVER_MIN or newer is needed"
    else
        say "NVIDIA GPU found: setting up for it (--device cpu leaves that out)"
        set_up_gpu || reason="the set-up for it failed (see above)"
    fi
    if [ -n "$reason" ]; then
        say "warning: serving on the CPU, as the GPU is not used: $reason"
        export PINION_DEVICE=cpu
    fi
}

set_up_device() {
    case ${DEVICE,,} in
    cuda | gpu) set_up_gpu ;;
    auto) set_up_if_possible ;;
    esac
}

# In the repository, which has Cargo's settings. Everything else keeps the caller's folder, in which its paths begin.
build() (
    cd "$ROOT"
    local packages=("${PACKAGES[@]}" bench)
    if [ "$PROFILE" = dev ]; then
        cargo build --locked --workspace --bins
    else
        say "building the release binaries (the first build takes several minutes)"
        cargo build --release --locked "${packages[@]/#/--package=pinion-}"
    fi
)

PROFILE=${PINION_BUILD:-release}
read_flags "$@"
check_device
check_model
setup
set_up_device
build
if [ -n "$SETUP_ONLY" ]; then
    case ${DEVICE,,} in
    cuda | gpu) has_driver || say "set up for a GPU, and $no_driver" ;;
    esac
    say "set up; serve with: deploy/launch.sh"
    exit 0
fi
# A model that is named behind a flag goes first.
names_model || export PINION_MODEL=$ROOT/deploy/demo-model
exec "$TARGET/${PROFILE/dev/debug}/pinion" serve "${FLAGS[@]}"
