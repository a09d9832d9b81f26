# Sourced by the recipes' scripts: where Pinion is, and a virtual environment with pinned packages. See docs/SCALING.md.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"
HERE=$ROOT/deploy/distributed

# Installs into the cache what is not there yet: install NAME PACKAGE==VERSION... It sets VENV.
install() {
    VENV=$CACHE/recipe-$1
    shift
    make_cache
    # Several clones may install at once: the second waits and finds it done.
    exec 8>"$VENV.lock"
    flock 8
    if [ ! -e "$VENV/installed" ]; then
        need_venv "$*"
        say "installing $*"
        "$PYTHON" -m venv --clear "$VENV" && "$VENV/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 ||
            die "pip could not install $*"
        touch "$VENV/installed"
    fi
    exec 8>&-
}

# The programs under test: PINION, or what this clone has built last.
pinion_program() {
    local profile
    if [ -n "${PINION:-}" ]; then
        printf '%s\n' "$PINION"
        return
    fi
    find_target
    for profile in release debug; do
        if [ -x "$TARGET/$profile/pinion" ]; then
            printf '%s\n' "$TARGET/$profile/pinion"
            return
        fi
    done
    die "no pinion is built: deploy/launch.sh --setup-only builds it, or PINION names one"
}
