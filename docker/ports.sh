# Sourced by docker/up: which ports of 127.0.0.1 the stack takes, and where to look at it.
#
# A port that is set is taken or refused. One that is not set is the stack's own already, else the usual one, else a free one.
#
# Gives: choose_ports, where_to_look.

is_taken() { # PORT
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

own_port() { # SERVICE -> the port that this stack's container of it publishes, if any
    docker ps --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
        --filter "label=com.docker.compose.service=$1" --format '{{.Ports}}' |
        sed -n 's/^\(.*, \)\?127\.0\.0\.1:\([0-9]*\)->.*/\2/p'
}

choose_port() { # NAME SERVICE USUAL
    local name=$1 service=$2 port own
    port=$(setting "$name")
    own=$(own_port "$service")
    if [ -n "$port" ]; then
        [[ $port =~ ^[1-9][0-9]{0,4}$ ]] && ((port < 65536)) || usage_error "$name=$port: must be a port, 1 to 65535"
        if [ "$port" != "$own" ] && is_taken "$port"; then
            echo "ERROR: $name: port $port of 127.0.0.1 is taken: stop what listens there, or choose another: $name=<port>" >&2
            exit 4
        fi
    else
        port=${own:-$3}
        while [ "$port" != "$own" ] && { is_taken "$port" || [ -n "${chosen[$port]:-}" ]; }; do
            port=$((port + 1))
        done
    fi
    [ -z "${chosen[$port]:-}" ] || usage_error "${chosen[$port]} and $name are both $port: choose another for one of them"
    chosen[$port]=$name
    export "$name=$port"
}

choose_ports() {
    local -A chosen=()
    choose_port GRAFANA_PORT grafana 3000
    choose_port ANALYZER_PORT analyzer 9400
    choose_port PROMETHEUS_PORT prometheus 9090
}

where_to_look() {
    echo "Grafana    http://127.0.0.1:$GRAFANA_PORT (user admin, make password)"
    echo "Reports    http://127.0.0.1:$ANALYZER_PORT"
    echo "Prometheus http://127.0.0.1:$PROMETHEUS_PORT"
}
