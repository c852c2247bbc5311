# Sourced by docker/bench and docker/bench-flags: HitLab in containers that work as the caller, with folders at their own
# paths, so that paths mean the same inside and out: MODELS_DIR and DATA_DIR to read, ARTIFACTS_DIR (default ./artifacts)
# to write.
#
# Gives: here, artifacts, mounts, private; usage_error, folder_of, mount_folders, hand_secrets, hitlab; and what
# attended.sh gives. A signal ends whatever runs, and the exit code is 130.

usage_error() {
    echo "ERROR: $1" >&2
    exit 2
}

folder_of() { # NAME VALUE -> absolute path without symbolic links
    local path
    path=$(realpath --canonicalize-existing -- "$2" 2>/dev/null) && [ -d "$path" ] || usage_error "$1=$2: no such folder"
    [[ $path != *:* ]] || usage_error "$1=$2: Docker cannot mount a path with a colon"
    echo "$path"
}

here=$(cd "$(dirname "$(realpath "$0")")/.." && pwd)
. "$here/docker/attended.sh"

private=
finish() {
    local code=$?
    [ -z "$private" ] || rm -rf -- "$private"
    [ -z "$interrupted" ] || code=130
    exit "$code"
}
trap finish EXIT
attend "$here/docker/check"

artifacts=${ARTIFACTS_DIR:-$here/artifacts}
mkdir -p "$artifacts" 2>/dev/null || true
artifacts=$(folder_of ARTIFACTS_DIR "$artifacts")
[ -w "$artifacts" ] || usage_error "ARTIFACTS_DIR=$artifacts: not writable for $(id -un); name another folder"
unset ARTIFACTS_DIR # to compose.yaml it names what the watching services see

declare -A mounts=()
for setting in MODELS_DIR DATA_DIR; do
    [ -z "${!setting:-}" ] || mounts[$(folder_of "$setting" "${!setting}")]=ro
done
mounts[$artifacts]=rw

private=$(mktemp -d "${TMPDIR:-/tmp}/hitlab-bench.XXXXXXXX")

options=(--rm --no-TTY --user "$(id -u):$(id -g)" --env HOME="$HOME" --env ARTIFACTS_DIR="$artifacts")
# Where the stack's Prometheus runs (make watch), the run says when that one cannot see the engine.
if [ -z "${PROMETHEUS_URL:-}" ] && [ -n "$(docker ps --quiet --filter label=com.docker.compose.project=hitlab \
    --filter label=com.docker.compose.service=prometheus)" ]; then
    export PROMETHEUS_URL=http://prometheus:9090
fi
[ -z "${PROMETHEUS_URL:-}" ] || options+=(--env PROMETHEUS_URL)
for setting in SSL_CERT_FILE REQUESTS_CA_BUNDLE; do # whom to believe to be an engine with https
    [ -n "${!setting:-}" ] || continue
    [ -f "${!setting}" ] && [[ ${!setting} != *:* ]] || usage_error "$setting=${!setting}: no such file"
    authority=$(realpath -- "${!setting}")
    options+=(--volume "$authority:$authority:ro" --env "$setting=$authority")
done
export BUILDX_GIT_INFO=false # it would want the checkout to belong to the caller
export TZ=${TZ:-$(readlink /etc/localtime | sed -n 's|.*/zoneinfo/||p')}

mount_folders() { # once all of them are in mounts
    local folder
    for folder in "${!mounts[@]}"; do
        options+=(--volume "$folder:$folder:${mounts[$folder]}")
    done
}

hand_secrets() { # NAMES of variables: in a file, because `docker inspect` shows a container's variables to everybody
    local name value
    (
        umask 077
        for name in "$@"; do
            # Only then may the shell look up what the name stands for: it would run commands in any other text.
            [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || usage_error "$(printf '%q is not the name of a variable' "$name")"
            value=${!name:-}
            value=${value%$'\n'} value=${value%$'\r'}
            [[ $value != *[$'\n\r']* ]] || usage_error "$name: its value has more than one line; set it to one line"
            [ -z "$value" ] || printf '%s=%s\n' "$name" "$value"
        done >"$private/secrets"
    )
    options+=(--volume "$private/secrets:/run/hitlab-secrets:ro" --env HITLAB_SECRETS_FILE=/run/hitlab-secrets)
}

share_locks() { # for a service on the host's network: it sees the same engines as the runs outside of containers
    local base=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
    [ -w "$base" ] || base=${XDG_STATE_HOME:-$HOME/.local/state}
    mkdir -p -m 700 "$base/hitlab/locks" 2>/dev/null || return 0 # HitLab itself says where it cannot write
    options+=(--env XDG_RUNTIME_DIR="$base" --volume "$base/hitlab:$base/hitlab")
}

steps=0
hitlab() { # SERVICE ARGUMENTS: HitLab's exit code, or 130 after a signal. Its container is gone when this returns.
    local code=0
    container=${private##*/}-$((++steps))
    attend docker compose --progress quiet --project-directory "$here" run --name "$container" "${options[@]}" "$@" ||
        code=$?
    [ "$code" = 0 ] || docker rm --force "$container" >/dev/null 2>&1 || true
    container=
    return "$code"
}

# The image is built where it is not there yet; Compose's own words about that are for stderr.
attend docker compose --progress quiet --project-directory "$here" --profile bench build --quiet bench >&2
