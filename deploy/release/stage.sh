#!/usr/bin/env bash
# Collects what a package installs in one folder, from programs that are built already:
#
#   deploy/release/stage.sh OUT [--profile release|debug | --from FOLDER] [--without-libtorch]
#
#   FOLDER has the programs; without it and a profile PINION_PROGRAMS names it, else they are Cargo's of profile release.
#
#   OUT/bin          the programs, stripped; pinion finds the roles beside it
#   OUT/libtorch/lib what the engine links of libtorch, and what that needs; found by $ORIGIN/../libtorch/lib
#   OUT/demo-model   a small model
#   OUT/LICENSE, OUT/sbom.cdx.json
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"

out=${1:?the folder to make}
shift
from=${PINION_PROGRAMS:-} libtorch=yes
find_target
while [ $# -gt 0 ]; do
    case $1 in
    --profile) from=$TARGET/${2:?}; shift ;;
    --from) from=${2:?}; shift ;;
    --without-libtorch) libtorch=no ;;
    *) die "unknown argument $1" ;;
    esac
    shift
done

need cargo "the list of what the programs are made of"
for program in strip objdump; do need "$program" "staging (apt install binutils)"; done
built=${from:-$TARGET/release}
rm -rf "$out"
mkdir -p "$out/bin"
for program in "${PROGRAMS[@]}"; do
    [ -x "$built/$program" ] || die "$built/$program is missing: deploy/launch.sh --setup-only builds it"
    strip --strip-unneeded -o "$out/bin/$program" "$built/$program"
    chmod 755 "$out/bin/$program"
done
if [ "$libtorch" = yes ]; then
    # shellcheck disable=SC2016
    objdump -p "$built/pinion-engine" | grep -F '$ORIGIN/../libtorch/lib' >/dev/null ||
        die "$built/pinion-engine would not find libtorch in a package: build it again without RUSTFLAGS of your own"
    mkdir -p "$out/libtorch/lib"
    # All that the engine maps from the wheel's folders; the rest comes from the system.
    wheels=$(readlink -f "$ROOT/.libtorch/..")
    LD_LIBRARY_PATH=$ROOT/.libtorch/lib ldd "$out/bin/pinion-engine" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | while read -r library; do
        library=$(readlink -e "$(dirname "$library")")/$(basename "$library")
        case $library in "$wheels"/*) ;; *) continue ;; esac
        case $(basename "$library") in
        libtorch_cpu.so | libc10.so | libgomp*.so.* | libcudart*.so.* | libcupti*.so.*) cp -L "$library" "$out/libtorch/lib/" ;;
        *) die "pinion-engine links $library, which deploy/release/sbom.py does not list" ;;
        esac
    done
    [ -e "$out/libtorch/lib/libtorch_cpu.so" ] || die "pinion-engine does not link libtorch"
    cp "$wheels"/torch-*.dist-info/licenses/LICENSE "$out/libtorch/LICENSE" 2>/dev/null ||
        cp "$wheels"/torch-*.dist-info/LICENSE "$out/libtorch/LICENSE"
    # Of the CUDA runtime and CUPTI, which libtorch's CPU half links.
    cp "$wheels"/nvidia_cuda_runtime-*.dist-info/licenses/License.txt "$out/libtorch/LICENSE.nvidia"
fi
cp -r "$ROOT/deploy/demo-model" "$out/demo-model"
cp "$ROOT/LICENSE" "$out/LICENSE"
"$PYTHON" "$ROOT/deploy/release/sbom.py" >"$out/sbom.cdx.json"
say "staged in $out: $(du -sh "$out" | cut -f1)"
