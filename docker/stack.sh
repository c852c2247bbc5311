# Sourced by the scripts of this folder: whose stack it is, and Compose for that one alone.
#
# Everything in Docker is named after the project, hitlab-<user> unless COMPOSE_PROJECT_NAME says otherwise. Settings come
# from the environment, else from the checkout's .env, as Compose takes them.
#
# Gives: here, setting, usage_error, stack, time_zone, caller, COMPOSE_PROJECT_NAME.

here=$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd)

usage_error() {
    echo "ERROR: $1" >&2
    exit 2
}

setting() { # NAME [DEFAULT] -> its value
    local value
    if [ -n "${!1:-}" ]; then
        echo "${!1}"
        return
    fi
    value=$([ ! -f "$here/.env" ] || sed -n "s/^\(export \)\?$1=//p" "$here/.env" | tail -n 1)
    value=${value%%' #'*}
    value=${value#[\"\']}
    value=${value%[\"\']}
    echo "${value:-${2:-}}"
}

project_of_user() {
    local user safe
    user=$(id -un 2>/dev/null || id -u)
    safe=${user,,}
    safe=${safe//[!a-z0-9_-]/-}
    [ "$safe" = "$user" ] || safe+=-$(id -u) # two names may look alike
    echo "hitlab-$safe"
}

COMPOSE_PROJECT_NAME=$(setting COMPOSE_PROJECT_NAME "$(project_of_user)")
[[ $COMPOSE_PROJECT_NAME =~ ^[a-z0-9][a-z0-9_-]*$ ]] ||
    usage_error "COMPOSE_PROJECT_NAME=$COMPOSE_PROJECT_NAME: must be of lower-case letters, digits, - and _"
HITLAB_OWNER=$(id -un 2>/dev/null || id -u)
export COMPOSE_PROJECT_NAME HITLAB_OWNER
# Those of another project, for whoever works in its shell.
unset COMPOSE_FILE COMPOSE_ENV_FILES COMPOSE_DISABLE_ENV_FILE
export COMPOSE_PROFILES=
export BUILDX_GIT_INFO=false # it would want the checkout to belong to the caller

stack() { # ARGUMENTS of docker compose
    docker compose --file "$here/compose.yaml" --project-directory "$here" "$@"
}

time_zone() { # -> TZ, or the host's own; times of artifacts are local
    local zone zones=/usr/share/zoneinfo
    zone=$(setting TZ)
    if [ -z "$zone" ]; then
        readlink /etc/localtime | sed -n 's|.*/zoneinfo/||p' || true
        return
    fi
    # Else a rule such as CET-1CEST. What nobody knows would be UTC without a word.
    [ ! -d "$zones" ] || [ -f "$zones/${zone#:}" ] || [[ $zone =~ ^(\<[^>]+\>|[A-Za-z]{3,})[+-]?[0-9] ]] ||
        usage_error "TZ=$zone: there is no such time zone; name one like Europe/Berlin"
    echo "$zone"
}

caller() { # -> user:group as which a container writes files of the caller's; to a rootless engine the caller is root
    if docker info --format '{{.SecurityOptions}}' 2>/dev/null | grep -q rootless; then
        echo 0:0
    else
        echo "$(id -u):$(id -g)"
    fi
}
