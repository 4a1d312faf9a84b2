# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# The cluster's processes: start them, find them again, wait for them, signal them. A process is identified by its PID, its
# start time and the boot, because after a crash or a reboot another process may have its PID.

BOOT=$(cut -c1-8 /proc/sys/kernel/random/boot_id)

# start_time PID : field 22 of its stat file, counted after the name (which may hold spaces)
start_time() {
    local s
    { read -r s < "/proc/$1/stat"; } 2>/dev/null || return 1
    # shellcheck disable=SC2086
    set -- ${s##*) }
    echo "${20}"
}

# record NAME PID PARENT
record() { echo "$2 $(start_time "$2" || echo 0) $BOOT $3 $(start_time "$3" || echo 0)" > "$D/pid/$1"; }

# pid_of NAME : its PID, if it is still the process that was started
pid_of() {
    local pid start boot rest
    { read -r pid start boot rest < "$D/pid/$1"; } 2>/dev/null || return 1
    [ "$boot" = "$BOOT" ] && [ "$start" = "$(start_time "$pid")" ] || return 1
    echo "$pid"
}

# parent_of NAME : the nsenter (or unshare) that waits for it, if it lives
parent_of() {
    local pid start boot parent pstart
    { read -r pid start boot parent pstart < "$D/pid/$1"; } 2>/dev/null || return 1
    [ "$boot" = "$BOOT" ] && [ "$pstart" = "$(start_time "$parent")" ] || return 1
    echo "$parent"
}

# state_of NAME : alive, paused or dead
state_of() {
    local pid key value
    pid=$(pid_of "$1") || { echo dead; return; }
    while read -r key value; do
        [ "$key" = State: ] || continue
        case $value in T* | t*) echo paused ;; Z* | X*) echo dead ;; *) echo alive ;; esac
        return
    done 2>/dev/null < "/proc/$pid/status"
    echo dead
}
alive() { [ "$(state_of "$1")" = alive ]; }

# in_cluster COMMAND... : inside the network, mount and PID namespace.
# nsenter, not `ip netns exec`: the latter mounts a fresh sysfs, which hides /sys/fs/cgroup.
in_cluster() { nsenter --target "$(pid_of holder)" --net --mount --pid -- "$@"; }
in_net() { nsenter --net="/run/netns/$NAME" -- "$@"; }

show_log() { [ ! -s "$L/$1.log" ] || { say "--- last lines of $L/$1.log"; tail -n 8 "$L/$1.log" >&2; say "---"; }; }

# start NAME COMMAND... : start it in the background, inside the namespaces; nothing to do if it is alive.
# setsid: otherwise the caller's whole process group gets a SIGHUP when the caller ends while a component is stopped.
start() {
    local name=$1 parent child='' target i; shift
    : > "$D/wanted/$name"
    case $(state_of "$name") in
        alive) return 0 ;;
        paused) signal_component "$name" CONT; say "$(elapsed) $name was paused; resumed it"; return 0 ;;
    esac
    target=$(pid_of holder)     # not within the background command: pgrep would find the subshell as its child
    setsid nsenter --target "$target" --net --mount --pid -- "$@" >> "$L/$name.log" 2>&1 < /dev/null 9>&- &
    parent=$!
    for ((i = 0; i < 250; i++)); do
        child=$(pgrep -P "$parent") && break
        kill -0 "$parent" 2>/dev/null || break
        sleep 0.02
    done
    disown "$parent" 2>/dev/null || true
    [ -n "$child" ] || { show_log "$name"; die "$name did not start. Its log: $HERE/cluster logs $name"; }
    record "$name" "$child" "$parent"
}

# wait_for "NAME [WHAT]" SECONDS COMMAND... : poll until COMMAND succeeds; fail at the deadline, or as soon as NAME dies
wait_for() {
    local label=$1 name=${1%% *} limit=$2 end; shift 2
    end=$((SECONDS + limit))
    until "$@" >/dev/null 2>&1; do
        if [ "$(state_of "$name")" = dead ]; then
            show_log "$name"; die "$name exited. Its log: $HERE/cluster logs $name. Repair the cause and run '$HERE/cluster up' again, or remove the cluster: '$HERE/cluster down'"
        fi
        if [ "$SECONDS" -ge "$end" ]; then
            show_log "$name"; die "$label is not ready after $limit s. Its log: $HERE/cluster logs $name. All components: $HERE/cluster status"
        fi
        sleep 0.1
    done
    say "$(elapsed) $label ready"
}

http_ok() { in_net curl -sfk --max-time 2 -o /dev/null "$@"; }
api_ok() { http_ok --cert "$P/admin.crt" --key "$P/admin.key" "https://$IP:${1:-6443}/readyz"; }
kc() { in_net "$BIN/kubectl" --kubeconfig="$K/admin.conf" "$@"; }

# all_stopped PID : whether all of its threads are stopped
all_stopped() {
    local s f
    for f in /proc/"$1"/task/*/stat; do
        read -r s < "$f" || continue
        s=${s##*) }
        [ "${s%% *}" = T ] || return 1
    done
}

# signal_component NAME SIGNAL : returns when it took effect
signal_component() {
    local name=$1 signal=$2 pid parent i
    if [ "$(state_of "$name")" = dead ]; then die "$name is not running. All components: $HERE/cluster status"; fi
    pid=$(pid_of "$name")
    kill -s "$signal" "$pid"
    case $signal in
        CONT)
            # nsenter, the parent, stops itself with its child and must be woken too.
            if parent=$(parent_of "$name"); then kill -s CONT "$parent" 2>/dev/null || true; fi
            ;;
        STOP) for ((i = 0; i < 100; i++)); do all_stopped "$pid" && return 0; sleep 0.02; done; die "$name (PID $pid) does not stop" ;;
        TERM | KILL)
            # A stopped process acts on TERM only when continued, and a stopped parent does not reap its child.
            kill -s CONT "$pid" 2>/dev/null || true
            if parent=$(parent_of "$name"); then kill -s CONT "$parent" 2>/dev/null || true; fi
            for ((i = 0; i < 300; i++)); do [ "$(state_of "$name")" != dead ] || return 0; sleep 0.1; done
            die "$name (PID $pid) did not end within 30 s of $signal"
            ;;
    esac
}
