#!/usr/bin/env bash
# The node of kubernetes.sh, in namespaces that it has just made: private folders, Pinion's image, the programs of
# Kubernetes, then check.py. It ends with the status of that; whatever ends it ends everything here.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../../deploy/setup.sh"
PARTS=$ROOT/benchmarks/checks/kubernetes
# On /run, which is memory of this node alone. Sockets want short paths.
NODE=/run/node
# Docker's bridge, by which pods and the node reach each other.
ADDRESS=172.17.0.1
export KUBECONFIG=$NODE/admin.conf DOCKER="docker --host unix://$NODE/docker.sock"
export PATH=$NODE/bin:$FOLDER/bin:$FOLDER/tools/usr/bin:$FOLDER/tools/usr/sbin:$PATH
export LD_LIBRARY_PATH=$FOLDER/tools/usr/lib/x86_64-linux-gnu:$FOLDER/tools/lib/x86_64-linux-gnu

# The kubelet's wishes (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go).
TUNABLES='vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000'

# Programs here write below /run, /var and /etc, wherever they are told to.
private_folders() {
    mount -t tmpfs -o size=80%,mode=755 tmpfs /run
    local folder own
    for folder in var etc; do
        own=/run/overlay/$folder
        mkdir -p "$own"/{upper,work}
        mount -t overlay -o "lowerdir=/$folder,upperdir=$own/upper,workdir=$own/work" overlay "/$folder"
    done
    mkdir -p "$NODE"/{bin,logs,tmp}
    # What a kubelet and dockerd set for the whole machine they find set, or not there: sysctls, profiles of AppArmor.
    local name value
    while read -r name value; do
        printf '%s\n' "$value" >"$NODE/$(basename "$name")"
        mount --bind "$NODE/$(basename "$name")" "/proc/sys/$name"
    done <<<"$TUNABLES"
    [ ! -d /sys/kernel/security ] || mount -t tmpfs tmpfs /sys/kernel/security
    ip link set lo up
    # Without names and without a way out.
    : >"$NODE/resolv.conf"
    export TMPDIR=$NODE/tmp
}

await() { # await SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2 name
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "$what is not there in time"
        for name in "${!STARTED[@]}"; do
            kill -0 "${STARTED[$name]}" 2>/dev/null || die "$name has ended: $(tail -n 1 "$NODE/logs/$name.log")"
        done
        sleep 0.2
    done
}

declare -A STARTED
start() { # start NAME COMMAND...
    local name=$1
    shift
    "$@" >"$NODE/logs/$name.log" 2>&1 &
    STARTED[$name]=$!
}

start_docker() {
    # CAP_SYS_RESOURCE is bit 24.
    if (((0x$(sed -n 's/^CapEff:\s*//p' /proc/self/status) >> 24 & 1) == 0)); then
        export REAL_RUNC=$FOLDER/tools/usr/sbin/runc
        cp "$PARTS/runc" "$NODE/bin/runc"
        echo "root has no CAP_SYS_RESOURCE here: containers get no negative OOM scores and no limits of their own"
    fi
    start dockerd dockerd --data-root "$NODE/docker" --exec-root "$NODE/docker-run" --pidfile "$NODE/docker.pid" \
        --host "unix://$NODE/docker.sock" --bip "$ADDRESS/16" --iptables=false --ip-masq=false --ip-forward=false \
        --cgroup-parent "/$CGROUP" --exec-opt native.cgroupdriver=cgroupfs --oom-score-adjust 0
    await 60 dockerd $DOCKER info
}

# A base that has what the image uses of debian:12-slim, under that name: there is no registry here.
make_images() {
    # What base-files makes when it is installed.
    mkdir -p "$FOLDER/base/usr/local/bin"
    tar --create --directory "$FOLDER/base" --exclude ./list . | $DOCKER import - debian:12-slim >/dev/null
    tar --create --directory "$FOLDER/bin" pause |
        $DOCKER import --change 'ENTRYPOINT ["/pause"]' - pause:local >/dev/null
    "$ROOT/deploy/docker/build.sh" pinion:check --from "$(dirname "$PINION")" \
        >"$NODE/logs/image.log" 2>&1 || die "the image cannot be built: $(tail -n 3 "$NODE/logs/image.log")"
}

# Who may ask: an administrator, and a router that may look at pods.
credentials() {
    local user token
    openssl genrsa -out "$NODE/accounts.key" 2048 2>/dev/null
    : >"$NODE/tokens.csv"
    for user in admin router; do
        token=$(openssl rand -hex 16)
        echo "$token,$user,$user$([ $user != admin ] || echo ,system:masters)" >>"$NODE/tokens.csv"
        cat >"$NODE/$user.conf" <<CONFIG
{"apiVersion": "v1", "kind": "Config", "current-context": "node",
 "clusters": [{"name": "node", "cluster": {"server": "https://$ADDRESS:6443",
                                           "certificate-authority": "$NODE/pki/apiserver.crt"}}],
 "users": [{"name": "$user", "user": {"token": "$token"}}],
 "contexts": [{"name": "node", "context": {"cluster": "node", "user": "$user"}}]}
CONFIG
    done
}

# No admission plugin is off, and rights are looked at. No kube-proxy: pods are reached by their own addresses.
start_kubernetes() {
    local etcd=http://127.0.0.1:2379 keys=$NODE/accounts.key
    start etcd etcd --data-dir "$NODE/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
        --listen-peer-urls http://127.0.0.1:2380
    start kube-apiserver kube-apiserver --etcd-servers "$etcd" --advertise-address "$ADDRESS" --cert-dir "$NODE/pki" \
        --token-auth-file "$NODE/tokens.csv" --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
        --service-account-issuer https://node --service-account-key-file "$keys" \
        --service-account-signing-key-file "$keys" --kubelet-preferred-address-types InternalIP
    await 60 "the API server" kubectl get --raw /readyz
    start kube-controller-manager kube-controller-manager --kubeconfig "$KUBECONFIG" --leader-elect=false \
        --cert-dir "$NODE/pki/manager" --root-ca-file "$NODE/pki/apiserver.crt" \
        --service-account-private-key-file "$keys"
    start kube-scheduler kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false --cert-dir "$NODE/pki/scheduler"
    start kubelet kubelet --kubeconfig "$KUBECONFIG" --hostname-override node --node-ip "$ADDRESS" \
        --root-dir "$NODE/kubelet" --cert-dir "$NODE/pki/kubelet" --volume-plugin-dir "$NODE/plugins" \
        --container-runtime docker --docker-endpoint "unix://$NODE/docker.sock" \
        --experimental-dockershim-root-directory "$NODE/dockershim" --pod-infra-container-image pause:local \
        --resolv-conf "$NODE/resolv.conf" --cgroup-driver cgroupfs --cgroups-per-qos=false \
        --enforce-node-allocatable= --fail-swap-on=false --oom-score-adj 0
    await 60 "the node" kubectl wait --for condition=Ready node/node --timeout 5s
}

# Everything of the run is gone when it ends, but its logs.
leave() {
    local status=$?
    rm -rf "$FOLDER/logs"
    cp -r "$NODE/logs" "$FOLDER/logs" || true
    [ "$status" = 0 ] || say "the logs of the node are in $FOLDER/logs"
    exit "$status"
}

private_folders
trap leave EXIT
began=$SECONDS
start_docker
make_images
echo "images: $((SECONDS - began)) s"
began=$SECONDS
credentials
start_kubernetes
echo "node Ready: $((SECONDS - began)) s after the start of etcd"
ROUTER_CONFIG=$NODE/router.conf "$VENV/bin/python" "$PARTS/check.py" --smg "$VENV/bin/smg" "$@"
