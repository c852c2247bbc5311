# Sourced by docker/bench and docker/bench-flags: HitLab in containers that work as the caller, with folders at their own
# paths, so that paths mean the same inside and out: MODELS_DIR and DATA_DIR to read, ARTIFACTS_DIR (default ./artifacts)
# to write.
#
# Gives: here, artifacts, mounts, private; usage_error, folder_of, mount_folders, hand_secrets, hitlab; and what
# attended.sh gives. A signal ends whatever runs, and the exit code is 130.

. "$(dirname "$(realpath "$0")")/stack.sh"

folder_of() { # NAME VALUE -> absolute path without symbolic links
    local path
    path=$(realpath --canonicalize-existing -- "$2" 2>/dev/null) && [ -d "$path" ] || usage_error "$1=$2: no such folder"
    [[ $path != *:* ]] || usage_error "$1=$2: Docker cannot mount a path with a colon"
    echo "$path"
}

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

artifacts=$(setting ARTIFACTS_DIR "$here/artifacts")
[ -d "$artifacts" ] || reason=$(mkdir -p -- "$artifacts" 2>&1) ||
    usage_error "ARTIFACTS_DIR=$artifacts: cannot be made (${reason##*: }); name a folder that $(id -un) may write to"
artifacts=$(folder_of ARTIFACTS_DIR "$artifacts")
[ -w "$artifacts" ] || usage_error "ARTIFACTS_DIR=$artifacts: not writable for $(id -un); name another folder"
export ARTIFACTS_DIR=artifacts # to compose.yaml it names what the watching services see

declare -A mounts=()
for setting in MODELS_DIR DATA_DIR; do
    folder=$(setting "$setting")
    [ -z "$folder" ] || mounts[$(folder_of "$setting" "$folder")]=ro
done
mounts[$artifacts]=rw

# A folder with secrets is locked for as long as anything of its bench lives. One that is not locked was left by a bench that
# was killed, its containers, too.
remove_stale() {
    local folder lock
    for folder in "${TMPDIR:-/tmp}"/hitlab-bench.*; do
        { [ -O "$folder" ] && [ ! -L "$folder" ] && exec {lock}<"$folder"; } 2>/dev/null || continue
        if flock --nonblock "$lock"; then
            docker ps --all --quiet --filter "name=^/?${folder##*/}-" | xargs --no-run-if-empty docker rm --force >/dev/null
            rm -rf -- "$folder"
        fi
        exec {lock}<&-
    done
}
remove_stale
private=$(mktemp -d "${TMPDIR:-/tmp}/hitlab-new.XXXXXXXX") # under its name once it is locked
exec {own_lock}<"$private"
flock "$own_lock"
mv -- "$private" "${private/hitlab-new/hitlab-bench}"
private=${private/hitlab-new/hitlab-bench}

options=(--rm --no-TTY --user "$(caller)" --env HOME="$HOME" --env ARTIFACTS_DIR="$artifacts" --env HITLAB_UMASK="$(umask)")
# Where the stack's Prometheus runs (make watch), the run says when that one cannot see the engine.
if [ -z "${PROMETHEUS_URL:-}" ] && [ -n "$(docker ps --quiet --filter label=com.docker.compose.project=$COMPOSE_PROJECT_NAME \
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
TZ=$(time_zone)
export TZ

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

find_socket() { # exports DOCKER_SOCKET and DOCKER_GROUP: the engine's own socket, as its host and its containers see it
    local endpoint seen
    DOCKER_SOCKET=$(setting DOCKER_SOCKET)
    if [ -z "$DOCKER_SOCKET" ]; then
        endpoint=${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null || true)}
        # Of an engine on another host: the usual one there.
        DOCKER_SOCKET=/var/run/docker.sock
        [[ $endpoint != unix://* ]] || DOCKER_SOCKET=${endpoint#unix://}
    fi
    seen=$(docker run --rm --network none --mount "type=bind,src=$DOCKER_SOCKET,dst=/socket,readonly" \
        --entrypoint stat "$HITLAB_IMAGE" --format '%g %F' /socket 2>&1) && [[ $seen == *' socket' ]] ||
        usage_error "ENGINE=vllm needs Docker's socket, which $DOCKER_SOCKET is not ($(tail -n 1 <<<"$seen")); name it: DOCKER_SOCKET=<path>"
    DOCKER_GROUP=${seen%% *}
    export DOCKER_SOCKET DOCKER_GROUP
}

steps=0
hitlab() { # SERVICE ARGUMENTS: HitLab's exit code, or 130 after a signal. Its container is gone when this returns.
    local code=0
    container=${private##*/}-$((++steps))
    attend stack --progress quiet run --name "$container" "${options[@]}" "$@" || code=$?
    [ "$code" = 0 ] || docker rm --force "$container" >/dev/null 2>&1 || true
    container=
    return "$code"
}

image_of() { # NAME -> the variable `image`: an id, so that no build of another checkout comes between two steps
    QUIET=yes attend "$here/docker/images" "$1" >"$private/image"
    image=$(<"$private/image")
}
image_of hitlab
export HITLAB_IMAGE=$image
