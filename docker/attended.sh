# Sourced by docker/containers.sh: commands that a signal to this script ends, none of which outlives it.
#
# What is attended runs in a process group of its own, so that INT, TERM and HUP reach this script alone, whether they are
# sent to it, to its group or by a terminal. The script asks the command to end, waits for it, and goes on with what is
# left to do; its own exit code is 130 then.
#
# Gives: attend, go_on, interrupted.

interrupted= # yes once a signal has come
halted=      # yes from then on: nothing new is started before go_on
attended=    # process group of what runs now
container=   # name of its container, where it has one
STOP_SECONDS=60 # for a run to end its engine and to write what it measured

note_signal() {
    [ -n "$halted" ] || echo "interrupted: waiting for the end of what runs" >&2 || true
    interrupted=yes halted=yes
    # Until it has ended: its container may not be there yet.
    while [ -n "$attended" ] && kill -0 "$attended" 2>/dev/null; do
        if [ -n "$container" ]; then
            docker stop --time "$STOP_SECONDS" "$container" >/dev/null 2>&1 || true
        else
            kill -TERM -- "-$attended" 2>/dev/null || true
        fi
        sleep 0.2
    done
}
trap note_signal INT TERM HUP

attend() { # COMMAND: its exit code, or 130 after a signal. It reads nothing from standard input.
    local code
    [ -z "$halted" ] || return 130
    set -m
    "$@" </dev/null &
    attended=$!
    set +m
    [ -z "$halted" ] || note_signal
    while code=0 && { wait "$attended" 2>/dev/null || code=$?; } && kill -0 "$attended" 2>/dev/null; do :; done
    attended=
    [ -z "$halted" ] || code=130
    return "$code"
}

go_on() { # after a signal, with what is to be done nevertheless; the next signal ends that
    halted=
}
