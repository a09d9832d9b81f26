#!/usr/bin/env bash
# Builds the CUDA object for the emulated device and prints its path. Tests call it; it rebuilds only what has changed.
#
#   kernels/emulation/build.sh [FOLDER]      (default: target/cuda-emulation)
set -euo pipefail
kernels=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:-$(cd "$kernels/.." && realpath -m -- "${CARGO_TARGET_DIR:-target}")/cuda-emulation}
# Contraction would give other last bits than the host's sampler has.
flags=(-std=c++17 -O3 -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off -fPIC -ftls-model=initial-exec -x c++)

mkdir -p "$out"
out=$(cd "$out" && pwd)
exec 9>"$out/lock"
flock -w 300 9
hash=$(cat "$kernels"/cuda/*.h "$kernels"/cuda/*.cu "$kernels"/emulation/* "$kernels/include/pinion_cuda.h" | sha256sum | cut -c1-24)
object=$out/libpinion_cuda_emulated-$hash.so
if [ ! -e "$object" ]; then
    rm -f "$out"/*.o "$out"/*.so
    for source in "$kernels"/cuda/*.cu "$kernels"/emulation/*.cpp; do
        case $(basename "$source") in
        runtime.cu) continue ;; # the real device's
        esac
        printf '%s\0' "$source"
    done | xargs -0 -P 2 -I{} sh -c '${CXX:-g++} '"${flags[*]}"' -c "$1" -o "$2/$(basename "$1").o" >&2' sh {} "$out"
    "${CXX:-g++}" -shared -o "$object.part" "$out"/*.o -ldl -Wl,-z,defs
    mv "$object.part" "$object"
fi
printf '%s\n' "$object"
