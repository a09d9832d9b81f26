#!/usr/bin/env bash
# Puts libtorch in place: a cache folder outside the repository and the link .libtorch inside it.
# Idempotent; says what it found. Sourced by the scripts of this folder, or run by itself.
#
#   deploy/setup.sh --cuda    and what libtorch needs to compute on a GPU (docs/GPU.md); needs no GPU
#
#   PINION_CACHE   where downloads are kept   (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON  the Python whose pip is used (default: python3)
set -euo pipefail

if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "[setup] error: Pinion runs on Linux on x86-64; this is $(uname -sm)" >&2
    exit 1
fi

ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
# Without a home everything stays in the repository.
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-${HOME:-$ROOT/target}/.cache}/pinion}
# Links lead there: a relative path would begin in another folder.
CACHE=$(realpath -m -- "$CACHE")
PYTHON=${PINION_PYTHON:-python3}

# tch 0.24.0 compiles against exactly this libtorch; the wheel carries no build-version file, so the
# version is checked here.
TORCH_VERSION=2.11.0
# Without most of what the wheel asks for: on the CPU none of it is used, and on a GPU cuBLASLt alone (deploy/cuda.sh).
SLIM_WHEELS=(torch==$TORCH_VERSION nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
             nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85)

# What libtorch_cuda.so of that wheel is linked with, as the wheel asks for it.
CUDA_WHEELS=("cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.0.2"
             nvidia-cudnn-cu13==9.19.0.56 nvidia-cusparselt-cu13==0.8.0 nvidia-nccl-cu13==2.28.9 nvidia-nvshmem-cu13==3.4.5)

# What a package installs, and the workspace's packages that they are built from.
PROGRAMS=(pinion pinion-frontend pinion-tokenizer pinion-engine pinion-detokenizer pinion-events pinion-pull
          pinion-doctor pinion-terminal)
PACKAGES=(launcher frontend tokenizer engine detokenizer events hub doctor terminal)

say() { printf '[setup] %s\n' "$*" >&2; }
die() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

need() { # need COMMAND WHAT-FOR
    command -v "$1" >/dev/null 2>&1 || die "$1 is missing: it is needed for $2"
}

need_venv() { # need_venv WHAT-FOR
    need "$PYTHON" "$1"
    "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        die "$PYTHON makes no virtual environments, which are needed for $1: apt install python3-venv, or name another Python in PINION_PYTHON"
}

version() {
    sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml"
}

# TARGET: the folder that Cargo builds in. A variable or a configuration file may name another than target/, and a
# relative one begins in the repository, where the scripts run Cargo. Scripts that this one starts use the same.
find_target() {
    local said=
    if command -v cargo >/dev/null 2>&1; then
        said=$(cd "$ROOT" && cargo metadata --no-deps --format-version 1 |
            sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p') || die "cargo metadata fails; see above"
    fi
    TARGET=${said:-$(cd "$ROOT" && realpath -m -- "${CARGO_TARGET_DIR:-target}")}
    export CARGO_TARGET_DIR=$TARGET
}

make_cache() {
    mkdir -p "$CACHE" 2>/dev/null && [ -w "$CACHE" ] || die "cannot write to the cache folder $CACHE: PINION_CACHE names another"
}

libtorch_version() { # libtorch_version TORCH_FOLDER
    sed -n "s/^__version__ = '\([^'+]*\).*/\1/p" "$1/version.py" 2>/dev/null
}

libtorch_is_good() { # libtorch_is_good FOLDER
    [ "$(libtorch_version "$1/torch")" = "$TORCH_VERSION" ] && [ -e "$1/torch/lib/libtorch_cpu.so" ]
}

setup_libtorch() {
    local folder=$CACHE/libtorch-$TORCH_VERSION-slim
    if libtorch_is_good "$folder"; then
        say "libtorch $TORCH_VERSION found in $folder"
    else
        need "$PYTHON" "downloading libtorch"
        "$PYTHON" -m pip --version >/dev/null 2>&1 ||
            die "$PYTHON has no pip, which downloads libtorch: install it (apt install python3-pip, dnf install python3-pip), or name another Python in PINION_PYTHON"
        make_cache
        rm -rf "$folder"
        # Several clones may set up at once: each downloads into its own folder and the first one wins.
        local part
        part=$(mktemp -d "$CACHE/libtorch.XXXXXX")
        # Another user may run what this one has set up.
        chmod 755 "$part"
        say "downloading libtorch $TORCH_VERSION (550 MB, about a minute)"
        pip_install "$part" --no-deps "${SLIM_WHEELS[@]}"
        libtorch_is_good "$part" || die "what was downloaded is not libtorch $TORCH_VERSION (got '$(libtorch_version "$part/torch")')"
        mv -T "$part" "$folder" 2>/dev/null || rm -rf "$part"
        say "libtorch $TORCH_VERSION is in $folder"
    fi
    ln -sfn "$folder/torch" "$ROOT/.libtorch"
}

# The CUDA half of libtorch finds its libraries beside its own folder. Nothing here needs a GPU.
setup_libtorch_cuda() {
    local folder=$CACHE/libtorch-$TORCH_VERSION-slim
    if [ -e "$folder/cuda-is-whole" ]; then
        say "libtorch $TORCH_VERSION for CUDA: $folder (found)"
        return
    fi
    need "$PYTHON" "downloading libtorch's CUDA libraries (PINION_PYTHON names another)"
    local part
    part=$(mktemp -d "$CACHE/libtorch-cuda.XXXXXX")
    say "downloading libtorch's CUDA libraries (2.7 GB on disk, some minutes)"
    pip_install "$part" "${CUDA_WHEELS[@]}"
    # Files of the CPU's set stay as they are; other clones may be using them.
    tar -C "$part" -cf - nvidia | tar -C "$folder" --skip-old-files -xf -
    rm -rf "$part"
    touch "$folder/cuda-is-whole"
    say "libtorch $TORCH_VERSION for CUDA is in $folder"
}

pip_install() { # pip_install FOLDER PIP-ARGUMENTS...
    local folder=$1
    shift
    local beat=
    if [ ! -t 2 ]; then
        # No progress bar without a terminal: show that it moves.
        (while sleep 10; do say "downloading ... $(du -sh "$folder" 2>/dev/null | cut -f1)"; done) &
        beat=$!
    fi
    local status=0
    # pip downloads into TMPDIR: there the line above can see it. It does not know the variable before 22.1, and then
    # passes over it. The wheels' libraries do not depend on the version of Python, and nothing imports their modules:
    # one version for every Python, also for those that torch has no wheels for or does not run with.
    TMPDIR=$folder PIP_ROOT_USER_ACTION=ignore "$PYTHON" -m pip install --disable-pip-version-check --no-warn-script-location \
        --only-binary=:all: --python-version 3.12 --implementation cp --ignore-requires-python \
        --quiet --progress-bar on --target "$folder" "$@" >&2 || status=$?
    [ -z "$beat" ] || { kill "$beat" 2>/dev/null; wait "$beat" 2>/dev/null || true; }
    [ "$status" = 0 ] ||
        die "pip could not install $* (see above); without a network PIP_INDEX_URL names a mirror, HTTPS_PROXY a proxy"
}

# In the repository, whose rust-toolchain.toml rustup follows.
check_rust() {
    local number oldest pinned
    RUST=$(cd "$ROOT" && rustc --version) || die "rustc does not run; see above"
    number=${RUST#rustc } number=${number%% *}
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
    pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$ROOT/rust-toolchain.toml")
    [ "$(printf '%s\n' "$oldest" "$number" | sort -V | head -n 1)" = "$oldest" ] ||
        die "rustc $number is too old: $oldest or newer is needed; rustup (https://rustup.rs) installs $pinned"
}

# clang's OpenMP calls a runtime of its own, and the programs link the one that comes with libtorch.
unset_clang() {
    local name
    for name in CXX HOST_CXX TARGET_CXX CXX_x86_64_unknown_linux_gnu; do
        # More than one word may be in it, like `ccache clang++`.
        # shellcheck disable=SC2086
        if [ -n "${!name:-}" ] && ${!name} --version 2>/dev/null | grep -i clang >/dev/null; then
            say "$name=${!name} is set in the environment: its OpenMP is not libtorch's; building with g++ instead"
            unset "$name"
        fi
    done
}

setup() {
    need cargo "building (https://rustup.rs)"
    need g++ "building the libtorch binding and the CPU kernels (apt install g++, dnf install gcc-c++)"
    local gxx
    gxx=$(g++ -dumpversion)
    [ "${gxx%%.*}" -ge 10 ] || die "g++ is of version $gxx, and the CPU kernels need 10 or newer"
    check_rust
    unset_clang
    say "$RUST, $(g++ --version | head -n 1)"
    find_target
    # A shell's own LIBTORCH would win over the link and bring in another version.
    if [ -n "${LIBTORCH:-}" ]; then
        say "LIBTORCH=$LIBTORCH is set in the environment; using .libtorch instead"
        unset LIBTORCH
    fi
    setup_libtorch
    # Programs find libtorch beside the repository's own target folder, along a path from .cargo/config.toml: not from
    # another target folder, and not where a shell's own RUSTFLAGS have replaced it.
    if [ "$TARGET" != "$ROOT/target" ] || [ -n "${RUSTFLAGS:-}${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
        export LD_LIBRARY_PATH=$ROOT/.libtorch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    setup
    [ "${1:-}" != --cuda ] || setup_libtorch_cuda
fi
