#!/usr/bin/env bash
# Builds libpinion_cuda.so: our CUDA kernels and the runtime half of kernels/include/pinion_cuda.h, with the CUDA
# runtime linked in. Needs g++ and pip, no GPU, no driver and no CUDA on the machine: the compiler comes from PyPI
# (118 MB, kept).
#
#   deploy/cuda.sh            builds target/cuda/libpinion_cuda.so for sm_80, sm_89, sm_90a and as PTX
#   deploy/cuda.sh --check    the same, and holds the compiler's report on registers and spills against
#                             kernels/README.md
#   deploy/cuda.sh --serve [OBJECT]    the same as the first, unless an object is named that is built already, and puts
#                             cuBLASLt beside it: all that `--device cuda` needs but a driver
#
# The engine looks for cuBLASLt in target/cuda/lib, and then where the loader does. PINION_CUBLASLT names a
# libcublasLt.so.13 that is here already; otherwise it comes from PyPI, too (423 MB, kept).
#
# Objects are kept in the cache folder under a hash of what they are made from, so a second build is a link.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

# All five by name: cuda-toolkit[nvcc] alone takes nvvm and crt of another version.
CUDA_VERSION=13.0.2
CUDA_WHEELS="cuda-toolkit[nvcc,nvvm,crt,cccl,cudart]==$CUDA_VERSION"
CUDA_TARGETS=(-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_89,code=sm_89
              -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_90,code=compute_90)
# What cuda-toolkit[cublas] of this version asks for.
CUBLAS_VERSION=13.1.0.3
CUBLASLT=libcublasLt.so.13
NVCC_FLAGS=(-std=c++17 -O3 -Xcompiler -fPIC --expt-relaxed-constexpr -Xptxas -v --threads 2)

setup_nvcc() {
    local whole=$CACHE/cuda-$CUDA_VERSION
    CUDA_HOME=$whole/nvidia/cu13
    if [ -x "$CUDA_HOME/bin/nvcc" ]; then
        return
    fi
    need "$PYTHON" "downloading nvcc"
    make_cache
    local part
    part=$(mktemp -d "$CACHE/cuda.XXXXXX")
    say "downloading nvcc of CUDA $CUDA_VERSION (118 MB)"
    pip_install "$part" "$CUDA_WHEELS"
    [ -x "$part/nvidia/cu13/bin/nvcc" ] || die "what was downloaded holds no nvcc"
    keep "$part" "$whole" nvidia/cu13/bin/nvcc
}

# Puts a folder that was downloaded in its place. What is there without FILE is the rest of another download; what is
# there with it is that of another clone, which was faster.
keep() { # keep PART FOLDER FILE
    [ -e "$2/$3" ] || rm -rf "$2"
    mv -T "$1" "$2" 2>/dev/null || rm -rf "$1"
    [ -e "$2/$3" ] || die "cannot move what was downloaded to $2: remove that folder, or name another cache in PINION_CACHE"
}

# An object depends on its own source, the headers and the flags.
object_of() { # object_of SOURCE
    local hash
    hash=$(cat "$1" "$ROOT"/kernels/cuda/*.h "$ROOT/kernels/include/pinion_cuda.h" - <<<"$CUDA_VERSION ${CUDA_TARGETS[*]} ${NVCC_FLAGS[*]}" |
        sha256sum | cut -c1-32)
    printf '%s/cuda-objects/%s-%s' "$CACHE" "$(basename "$1" .cu)" "$hash"
}

compile() { # compile SOURCE
    local kept part
    kept=$(object_of "$1")
    [ ! -e "$kept.o" ] || [ ! -e "$kept.log" ] || return 0
    part=$kept.$$
    if ! "$CUDA_HOME/bin/nvcc" "${NVCC_FLAGS[@]}" "${CUDA_TARGETS[@]}" -c "$1" -o "$part.o" >"$part.log" 2>&1; then
        grep -v '^ptxas info' "$part.log" >&2
        ! grep 'unsupported GNU version' "$part.log" >/dev/null ||
            die "nvcc of CUDA $CUDA_VERSION does not take this g++: install an older one and name it in NVCC_CCBIN (NVCC_CCBIN=g++-14)"
        die "nvcc could not compile $1"
    fi
    mv "$part.log" "$kept.log"
    mv "$part.o" "$kept.o"
}

# Before minutes of compiling. Fedora and RHEL have the archive in a package of its own.
need_static_libstdcxx() {
    [ -e "$(g++ -print-file-name=libstdc++.a)" ] ||
        die "g++ has no libstdc++.a, which the CUDA object is linked with: dnf install libstdc++-static"
}

build_cuda() {
    local out=$TARGET/cuda source objects=() logs=() start=$SECONDS
    mkdir -p "$out" "$CACHE/cuda-objects"
    for source in "$ROOT"/kernels/cuda/*.cu; do
        compile "$source"
        objects+=("$(object_of "$source").o")
        logs+=("$(object_of "$source").log")
    done
    # What comes from archives is hidden, and dropped where nothing calls it: some of libstdc++ asks for a newer libc
    # than we do.
    g++ -shared -s -o "$out/libpinion_cuda.so.part" "${objects[@]}" -L"$CUDA_HOME/lib" -l:libcudart_static.a -ldl -lrt -lpthread \
        -static-libstdc++ -static-libgcc -Wl,-z,defs -Wl,--exclude-libs,ALL -Wl,--gc-sections
    mv "$out/libpinion_cuda.so.part" "$out/libpinion_cuda.so"
    say "$out/libpinion_cuda.so, $(du -h "$out/libpinion_cuda.so" | cut -f1), in $((SECONDS - start)) s"
    cat "${logs[@]}" >"$out/ptxas.log"
    # Without a check its table is for reading only: a machine without Python goes on.
    "$PYTHON" "$ROOT/kernels/registers.py" "$out/ptxas.log" ${1:+"$ROOT/kernels/README.md"} || [ -z "${1:-}" ]
}

# A link to the folder, not to the file: the library looks for others beside itself.
setup_cublaslt() {
    local out=$TARGET/cuda whole=$CACHE/cublas-$CUBLAS_VERSION part
    local folder=$whole/nvidia/cu13/lib
    if [ -z "${PINION_CUBLASLT:-}" ] && [ -d "$out/lib" ] && [ ! -L "$out/lib" ] && [ -e "$out/lib/$CUBLASLT" ]; then
        say "$CUBLASLT found in $out/lib"
        return
    fi
    [ -L "$out/lib" ] || [ ! -e "$out/lib" ] ||
        die "$out/lib is a folder and not the link to cuBLASLt that belongs there: move it away"
    if [ -n "${PINION_CUBLASLT:-}" ]; then
        [ "$(basename "$PINION_CUBLASLT")" = "$CUBLASLT" ] && [ -e "$PINION_CUBLASLT" ] ||
            die "PINION_CUBLASLT=$PINION_CUBLASLT is not a file of the name $CUBLASLT"
        folder=$(cd "$(dirname "$PINION_CUBLASLT")" && pwd)
    elif [ ! -e "$folder/$CUBLASLT" ]; then
        need "$PYTHON" "downloading cuBLASLt"
        make_cache
        part=$(mktemp -d "$CACHE/cublas.XXXXXX")
        chmod 755 "$part"
        say "downloading cuBLASLt $CUBLAS_VERSION (423 MB)"
        pip_install "$part" --no-deps "nvidia-cublas==$CUBLAS_VERSION"
        [ -e "$part/nvidia/cu13/lib/$CUBLASLT" ] || die "what was downloaded holds no $CUBLASLT"
        keep "$part" "$whole" "nvidia/cu13/lib/$CUBLASLT"
    fi
    mkdir -p "$out"
    ln -sfnT "$folder" "$out/lib"
    [ -e "$out/lib/$CUBLASLT" ] || die "$out/lib leads to no $CUBLASLT: does the path of PINION_CACHE still exist?"
    say "$CUBLASLT is in $folder"
}

# cuBLASLt, and the object unless one that is built already will be served.
setup_cuda() { # setup_cuda [OBJECT]
    if [ -n "${1:-}" ]; then
        [ -r "$1" ] || die "the CUDA object $1 cannot be read"
        say "the CUDA object is $1"
    else
        need g++ "linking the CUDA object"
        need_static_libstdcxx
        setup_nvcc
        build_cuda
    fi
    setup_cublaslt
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    find_target
    case "${1:-}" in
    "" | --check)
        need g++ "linking the CUDA object"
        need_static_libstdcxx
        setup_nvcc
        build_cuda ${1:+check}
        ;;
    --serve) setup_cuda "${2:-}" ;;
    *) die "unknown argument $1" ;;
    esac
fi
