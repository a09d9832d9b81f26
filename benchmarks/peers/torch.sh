# Sourced by the scripts of peers that need PyTorch: one copy for all of them, in the cache, on the path of each venv.
#
#   shared_torch VENV    installs what torch.lock names, if it is not there, and makes it importable in VENV

shared_torch() {
    local lock target part
    lock=$(dirname "${BASH_SOURCE[0]}")/torch.lock
    target=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}/torch-$(sed -n 's/^torch==//p' "$lock")
    if ! cmp -s "$lock" "$target/done"; then
        say "installing torch (2 GB to download, 3.8 on disk)"
        mkdir -p "$(dirname "$target")"
        part=$(mktemp -d "$target.XXXXXX")
        "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$part" -r "$lock"
        cp "$lock" "$part/done"
        rm -rf "$target"
        mv -T "$part" "$target"
    fi
    echo "$target" >"$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
}
