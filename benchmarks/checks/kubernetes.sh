#!/usr/bin/env bash
# Pinion's chart in a real Kubernetes of one node: API server, controllers, scheduler and kubelet 1.20.2, built from
# Debian's source package, with Debian's etcd and dockerd. kubernetes/check.py says what it looks at.
#
#   benchmarks/checks/kubernetes.sh [--streams N]         everything, with N streams at least (default: 1000)
#   benchmarks/checks/kubernetes.sh --build [PROGRAM..]   only downloads and builds, or these programs of Kubernetes
#
#   PINION          the program to test; its roles stand beside it  (default: what this clone has built last)
#   PINION_CACHE    where downloads and builds are kept  (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   DEBIAN_MIRROR   where Debian's packages come from  (default: http://deb.debian.org/debian)
#
# The first run downloads 190 MB and builds Kubernetes, some minutes. It wants root, cgroup v1, a C compiler and 6 GiB
# of free memory. The node runs in namespaces of its own, on a tmpfs that is gone with them: whatever ends the script,
# nothing is left on the host but the cache and, after SIGKILL, empty control groups, which the next run removes.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../deploy/distributed/recipe.sh"

KUBERNETES=1.20.2 SMG=1.13.0 HELM=0.2.2
PARTS=$ROOT/benchmarks/checks/kubernetes
FOLDER=$CACHE/kubernetes-$KUBERNETES
GO=$FOLDER/go/usr/lib/go-1.19
TREE=$FOLDER/gopath/src/k8s.io/kubernetes
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)
# Of all containers of the node: the only thing that does not go with its namespaces.
CGROUP=pinion-kubernetes

check_machine() {
    [ "$(id -u)" = 0 ] || die "a node makes namespaces and mounts: run this as root"
    [ "$(uname -m)" = x86_64 ] || die "packages.lock has packages for x86_64 alone"
    local program free
    for program in unshare setpriv nsenter mount ip openssl curl dpkg-deb strip cc; do
        need "$program" "a Kubernetes node"
    done
    unshare --mount --net --pid --fork true 2>/dev/null || die "this machine does not let root make namespaces"
    [ -d /sys/fs/cgroup/memory ] || die "this machine has no cgroup v1, and with v2 alone this check has never run"
    free=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
    [ "$free" -ge 6 ] || die "the node takes 6 GiB of memory, and $free are free"
}

# Packages that are not in the cache yet, each held against its checksum.
download() {
    local sum path file
    mkdir -p "$FOLDER/packages"
    while read -r sum _ path; do
        file=$FOLDER/packages/$(basename "$path")
        [ ! -e "$file" ] || continue
        say "downloading $(basename "$path")"
        curl --silent --show-error --fail --location --max-time 600 --output "$file.part" "$MIRROR/$path" ||
            die "$MIRROR/$path cannot be had: DEBIAN_MIRROR names another mirror"
        echo "$sum  $file.part" | sha256sum --check --status ||
            die "$MIRROR/$path has not the checksum of packages.lock"
        mv "$file.part" "$file"
    done < <(grep -v '^#' "$PARTS/packages.lock")
}

# The packages for one purpose in FOLDER/PURPOSE; again when the list has changed.
unpack() { # unpack PURPOSE
    local folder=$FOLDER/$1 list path
    list=$(grep " $1 " "$PARTS/packages.lock")
    [ "$list" != "$(cat "$folder/list" 2>/dev/null)" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    while read -r _ _ path; do
        dpkg-deb --extract "$FOLDER/packages/$(basename "$path")" "$folder" ||
            die "$(basename "$path") cannot be unpacked"
    done <<<"$list"
    printf '%s\n' "$list" >"$folder/list"
}

# Without modules: the source package has all that it needs in vendor/, so that nothing is downloaded.
in_gopath() {
    env --chdir="$TREE" --ignore-environment PATH="$GO/bin:$PATH" HOME="$FOLDER" GOROOT="$GO" \
        GOPATH="$FOLDER/gopath" GOCACHE="$FOLDER/gocache" GO111MODULE=off CGO_ENABLED=0 "$@"
}

# The source, and what upstream's Makefile generates before it compiles: the descriptions of all types, which the API
# server publishes, and against which kubectl holds objects.
prepare_source() {
    local made=$TREE/pkg/generated/openapi/zz_generated.openapi.go packages
    [ ! -e "$made" ] || return 0
    rm -rf "$TREE"
    mkdir -p "$TREE"
    tar --extract --gzip --strip-components=1 --directory "$TREE" \
        --file "$FOLDER/packages/kubernetes_1.20.5+really$KUBERNETES.orig.tar.gz"
    in_gopath go build -o "$FOLDER/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen ||
        die "openapi-gen cannot be built"
    packages=$(cd "$TREE" && grep -R --files-with-matches --include='*.go' '^// +k8s:openapi-gen=' pkg vendor/k8s.io |
        grep -v -e code-generator -e sample-apiserver | xargs -n1 dirname | sort -u |
        sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
    in_gopath "$FOLDER/openapi-gen" --input-dirs "$packages" --output-file-base zz_generated.openapi \
        --output-package k8s.io/kubernetes/pkg/generated/openapi --report-filename "$FOLDER/openapi-gen.report" \
        --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt || die "openapi-gen failed"
    [ -e "$made" ] || die "openapi-gen has written nothing"
}

build() { # build [PROGRAM..]
    local program package flags="-s -w"
    for package in component-base/version client-go/pkg/version; do
        package=k8s.io/kubernetes/vendor/k8s.io/$package
        flags+=" -X $package.gitVersion=v$KUBERNETES -X $package.gitMajor=1 -X $package.gitMinor=20"
    done
    download
    mkdir -p "$FOLDER/bin"
    for program in "$@"; do
        [[ " ${PROGRAMS[*]} " == *" $program "* ]] ||
            die "no program of Kubernetes is called $program; there are ${PROGRAMS[*]}"
        [ ! -x "$FOLDER/bin/$program" ] || continue
        unpack go
        prepare_source
        say "building $program $KUBERNETES"
        in_gopath go build -trimpath -ldflags "$flags" -o "$FOLDER/bin/$program.part" "./cmd/$program" ||
            die "$program cannot be built"
        mv "$FOLDER/bin/$program.part" "$FOLDER/bin/$program"
    done
    # The process that holds a pod's namespaces.
    [ -x "$FOLDER/bin/pause" ] || cc -Os -static -o "$FOLDER/bin/pause" "$TREE/build/pause/linux/pause.c" ||
        die "the pause program cannot be built"
}

# Control groups are empty once their processes have ended, which takes a moment.
remove_cgroups() {
    local end=$((SECONDS + 20)) left
    while left=$(find /sys/fs/cgroup -depth -type d -path "*/$CGROUP*" 2>/dev/null) && [ -n "$left" ]; do
        xargs --no-run-if-empty rmdir <<<"$left" 2>/dev/null && return
        [ "$SECONDS" -lt "$end" ] || die "these control groups are in use: $left"
        sleep 0.2
    done
}

leave() {
    local status=$?
    { [ -z "${node:-}" ] || kill -KILL "$node"; wait; } 2>/dev/null || true
    remove_cgroups
    exit "$status"
}

if [ "${1:-}" = --build ]; then
    shift
    make_cache
    build "${@:-${PROGRAMS[@]}}"
    exit
fi
check_machine
make_cache
PINION=$(pinion_program)
[ -x "$PINION" ] || die "there is no program $PINION"
mkdir -p "$FOLDER"
exec 7>"$FOLDER/lock"
flock --nonblock 7 || die "this check runs already"
build "${PROGRAMS[@]}"
unpack tools
unpack base
setup_libtorch
install "kubernetes-$SMG-$HELM" "smg==$SMG" "helm-python-sdk==$HELM" pyyaml==6.0.3

trap leave EXIT
trap 'exit 130' INT TERM
remove_cgroups
# The namespaces end with `unshare`, and `unshare` with this script.
PINION=$(readlink -f "$PINION") CGROUP=$CGROUP FOLDER=$FOLDER VENV=$VENV setpriv --pdeathsig KILL \
    unshare --mount --net --pid --ipc --uts --fork --kill-child --mount-proc "$PARTS/node.sh" "$@" 7>&- &
node=$!
wait "$node"
