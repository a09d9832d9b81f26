#!/usr/bin/env bash
# Makes a Debian package from a staged folder:
#
#   deploy/release/stage.sh STAGE && deploy/debian/build.sh STAGE OUT_FOLDER
#
# The programs and libtorch are in /usr/lib/pinion, the options in /etc/pinion/pinion.toml, the unit is pinion.service. The
# service is neither enabled nor started by the installation: the options come first.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"
stage=${1:?the staged folder} out=${2:?the folder for the package}
version=$(version)

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
umask 022
install -d "$tree"/{DEBIAN,usr/bin,usr/lib/pinion,usr/share/pinion,usr/share/doc/pinion,usr/lib/systemd/system,etc/pinion}
cp -r "$stage/bin" "$stage/libtorch" "$tree/usr/lib/pinion/"
rm "$tree/usr/lib/pinion/libtorch"/LICENSE*
find "$tree/usr/lib/pinion/libtorch" -type f -exec chmod 644 {} +
ln -s ../lib/pinion/bin/pinion "$tree/usr/bin/pinion"
cp -r "$stage/demo-model" "$tree/usr/share/pinion/"
# From the same tables as the help.
install -d "$tree"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,man/man1}
"$stage/bin/pinion" completions bash >"$tree/usr/share/bash-completion/completions/pinion"
"$stage/bin/pinion" completions zsh >"$tree/usr/share/zsh/vendor-completions/_pinion"
"$stage/bin/pinion" completions fish >"$tree/usr/share/fish/vendor_completions.d/pinion.fish"
"$stage/bin/pinion" man | gzip -9n >"$tree/usr/share/man/man1/pinion.1.gz"
install -m 644 "$stage/sbom.cdx.json" "$tree/usr/share/doc/pinion/"
install -m 644 "$ROOT/deploy/systemd/pinion.service" "$tree/usr/lib/systemd/system/"
install -m 644 "$ROOT/deploy/systemd/pinion.toml" "$tree/etc/pinion/"
{
    printf 'Pinion is under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0\n\nlibtorch, in /usr/lib/pinion/libtorch, is under:\n\n'
    cat "$stage/libtorch/LICENSE"
    printf '\nlibcudart and libcupti, which libtorch links, are in the same folder under:\n\n'
    cat "$stage/libtorch/LICENSE.nvidia"
    printf '\nlibgomp, in the same folder, is part of GCC, under the GNU General Public License 3, /usr/share/common-licenses/GPL-3,\n'
    printf 'with the GCC Runtime Library Exception 3.1.\n\nLicences of the crates that the programs are made of: pinion.cdx.json\n'
} >"$tree/usr/share/doc/pinion/copyright"
date=$(git -C "$ROOT" log -1 --format=%aD 2>/dev/null || date -R)
printf 'pinion (%s) unstable; urgency=medium\n\n  * docs and CHANGELOG.md of the source tree have the changes.\n\n -- Pinion <pinion@localhost>  %s\n' \
    "$version" "$date" | gzip -9n >"$tree/usr/share/doc/pinion/changelog.gz"
printf '/etc/pinion/pinion.toml\n' >"$tree/DEBIAN/conffiles"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: pinion
Version: $version
Architecture: amd64
Maintainer: Pinion <pinion@localhost>
Installed-Size: $(du -sk "$tree" | cut -f1)
Depends: libc6 (>= 2.34), libgcc-s1, libstdc++6 (>= 11)
Recommends: ca-certificates
Section: net
Priority: optional
Description: server for large language models
 Pinion serves large language models from separate, CPU-pinned processes that
 communicate over shared memory. It has an OpenAI-compatible API, serves
 folders of the Hugging Face hub and exports Prometheus metrics.
CONTROL
cat >"$tree/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # An upgrade of a running service: it drains, then the new one starts.
    systemctl try-restart pinion.service
fi
POSTINST
cat >"$tree/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now pinion.service
fi
PRERM
cat >"$tree/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    rm -rf /etc/pinion /var/cache/pinion /var/cache/private/pinion
fi
POSTRM
chmod 755 "$tree/DEBIAN"/{postinst,prerm,postrm}
(cd "$tree" && find usr etc -type f -exec md5sum {} +) >"$tree/DEBIAN/md5sums"
mkdir -p "$out"
dpkg-deb --root-owner-group -Zzstd -z6 --build "$tree" "$out/pinion_${version}_amd64.deb"
