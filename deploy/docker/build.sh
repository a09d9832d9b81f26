#!/usr/bin/env bash
# Packs programs that are built already as the CPU image, without a compiler in the build:
#
#   deploy/docker/build.sh [IMAGE] [--profile release|debug | --from FOLDER]      (default: pinion:cpu, release)
#
# DOCKER names the client. It must speak to BuildKit, which leaves out the stages that nothing needs.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"
DOCKER=${DOCKER:-docker}
image=pinion:cpu
case "${1:-}" in "" | --*) ;; *) image=$1; shift ;; esac

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
"$ROOT/deploy/release/stage.sh" "$context/stage" "$@"
version=$(version)
revision=$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || echo unknown)
DOCKER_BUILDKIT=1 $DOCKER build --file "$ROOT/deploy/docker/Dockerfile" --target cpu --tag "$image" \
    --build-arg SOURCE=staged --build-arg VERSION="$version" --build-arg REVISION="$revision" "$context"
