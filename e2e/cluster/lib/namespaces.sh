# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# The namespaces of a cluster: a named network namespace, and a PID and mount namespace whose PID 1 (the "holder") is a `pause`
# that reaps. The end of the holder ends all processes, containers and mounts, so `down` leaves none.

netns_ok() { nsenter --net="/run/netns/$NAME" true 2>/dev/null; }

# The end of the holder is like a power failure of the node: its /run is lost, disks stay.
forget_boot() {
    rm -rf "$D/pid" "$D/containerd-state" "$D/cni-state" "$D/private/run" "$CRI" "$CRI.ttrpc"
    mkdir -p "$D/pid"
}

# A killed holder can remain until all its processes are reaped, and then has no namespaces any more.
holder_ok() { alive holder && in_cluster true 2>/dev/null; }

# end_holder : kill it if it is alive; returns when all its processes have ended
end_holder() {
    local name parent pid i
    [ -d "$D/pid" ] || return 0
    for name in "$D"/pid/*; do   # a stopped nsenter does not reap its child, and the holder waits for that
        if parent=$(parent_of "${name##*/}"); then kill -CONT "$parent" 2>/dev/null || true; fi
    done
    pid=$(pid_of holder) || return 0
    parent=$(parent_of holder) || parent=''
    kill -KILL "$pid" 2>/dev/null || true
    for ((i = 0; i < 200; i++)); do
        if ! pid_of holder >/dev/null; then
            # Wait for the parent too: otherwise it counts as a process that is left.
            for _ in {1..20}; do if [ ! -d "/proc/${parent:-none}" ]; then return 0; fi; sleep 0.02; done
            return 0
        fi
        sleep 0.05
    done
    die "the namespace holder (PID $pid) does not end, because a process of the cluster hangs in the kernel (see: ps -eo pid,stat,cmd | grep ' D'). Try again later"
}

open_box() {
    local parent child='' i d
    # The network namespace outlives the holder, so that programs started with `run` stay in it.
    if ! netns_ok; then
        ip netns del "$NAME" 2>/dev/null || rm -f "/run/netns/$NAME"   # a name left without its namespace
        ip netns add "$NAME"
    fi
    if ! holder_ok; then
        [ ! -e "$D/pid/holder" ] || say "$(elapsed) found the remains of an earlier start; removing them"
        end_holder
        kill_strays
        forget_boot
        remove_cgroups || say "some old cgroups under */$NAME cannot be removed yet; continuing"
        : > "$D/wanted/holder"
        setsid nsenter --net="/run/netns/$NAME" unshare --mount --propagation private --pid --fork --mount-proc --kill-child \
            "$BIN/pause" < /dev/null > "$L/holder.log" 2>&1 9>&- &
        parent=$!
        for ((i = 0; i < 250; i++)); do
            # Until it is `pause`, it still makes its mounts.
            child=$(pgrep -P "$parent") && [ "$(readlink "/proc/$child/exe" 2>/dev/null)" -ef "$BIN/pause" ] && break
            kill -0 "$parent" 2>/dev/null || break
            sleep 0.02
        done
        disown "$parent" 2>/dev/null || true
        [ -n "$child" ] || { show_log holder; die "the namespace holder did not start. Check whether namespaces are allowed: unshare --mount --pid --fork --mount-proc true"; }
        record holder "$child" "$parent"
        # With `unshare --propagation shared` pod mounts would leak to the host, and /run/netns, which ip(8) makes shared, would
        # remain a peer of the host's.
        in_cluster mount --make-rshared /
        for d in "${PRIVATE[@]}"; do
            if [ ! -d "$d" ]; then mkdir -p "$d"; echo "$d" >> "$STATE_ROOT/.made-dirs"; fi
            mkdir -p "$D/private$d"
            in_cluster mount --bind "$D/private$d" "$d"
        done
    fi
    modprobe br_netfilter 2>/dev/null || true
    in_cluster sh -eu <<S
ip link set lo up
ip link show sw0 >/dev/null 2>&1 || ip link add sw0 type veth peer name sw1
ip link set sw0 up; ip link set sw1 up
ip addr replace $IP/24 dev sw0
ip route replace $SVC_CIDR dev sw0          # host processes need a route before DNAT; there is no default route
sysctl -qw net.ipv4.ip_forward=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1 || echo "this kernel has no br_netfilter: Services may not answer pods of the same node" >&2
S
}

# --- cgroups -----------------------------------------------------------------------------------------------------------
cgroup_dirs() {   # this cluster's root in each hierarchy (cgroup v1), or the one root (v2)
    local c
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo "/sys/fs/cgroup/$NAME"; return; fi
    for c in /sys/fs/cgroup/*/; do
        if [ -e "${c}cgroup.procs" ] && [ ! -L "${c%/}" ]; then echo "$c$NAME"; fi
    done
}

make_cgroups() {  # the kubelet wants its cgroupRoot to exist
    local c controller
    for c in $(cgroup_dirs); do mkdir -p "$c"; done
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        for controller in $(< /sys/fs/cgroup/cgroup.controllers); do
            { echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control; } 2>/dev/null || true
            { echo "+$controller" > "/sys/fs/cgroup/$NAME/cgroup.subtree_control"; } 2>/dev/null || true
        done
    fi
}

remove_cgroups() { # they are empty; deepest first; a cgroup may stay busy shortly after its last process
    local c i
    for ((i = 0; i < 20; i++)); do
        for c in $(cgroup_dirs); do
            [ ! -d "$c" ] || find "$c" -depth -type d -exec rmdir {} + 2>/dev/null || true
        done
        for c in $(cgroup_dirs); do [ ! -d "$c" ] || { sleep 0.25; continue 2; }; done
        return 0
    done
    return 1
}

# --- taking it down ----------------------------------------------------------------------------------------------------
# Ends processes in our cgroups after the holder's end. There are none, unless a user moved one there.
kill_strays() {
    local c pid
    for c in $(cgroup_dirs); do
        [ -d "$c" ] || continue
        for pid in $(find "$c" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u); do kill -9 "$pid" 2>/dev/null || true; done
    done
}

ancestors() { local p=$$; while [ "${p:-0}" -gt 1 ]; do echo "$p"; p=$(awk '/^PPid:/ {print $2}' "/proc/$p/status"); done; }

# Ends programs that were started with `run`, which are in the network namespace only. Our own ancestors are spared.
kill_netns_processes() {
    local spare pids pid i
    netns_ok || return 0
    for ((i = 0; i < 50; i++)); do
        spare=$(ancestors); pids=''
        for pid in $(ip netns pids "$NAME" 2>/dev/null); do grep -qx "$pid" <<< "$spare" || pids+=" $pid"; done
        [ -n "$pids" ] || return 0
        # First wait for the parents of processes that have just ended, then TERM, then KILL.
        # shellcheck disable=SC2086
        case $i in
            5) say "ending processes in the network of $NAME:$pids"; kill -TERM $pids 2>/dev/null || true; kill -CONT $pids 2>/dev/null || true ;;
            25) kill -KILL $pids 2>/dev/null || true ;;
        esac
        sleep 0.1
    done
    say "processes that do not end:$pids"
}

# rmdir of a folder that is a mount point in another mount namespace silently unmounts it there: another cluster would lose its
# /run/containerd. So this removes only folders that a cluster made, and only if no process has a mount there.
remove_made_dirs() {
    local d dirs
    [ -e "$STATE_ROOT/.made-dirs" ] || return 0
    mapfile -t dirs < <(sort -u "$STATE_ROOT/.made-dirs")
    for d in "${dirs[@]}"; do
        [ "$d" != /run/netns ] || continue   # ip(8) makes it a mount point of the host; it stays, as after any `ip netns`
        if grep -qs " $d " /proc/[0-9]*/mountinfo; then return 0; fi
    done
    for d in "${dirs[@]}"; do [ "$d" = /run/netns ] || rmdir "$d" 2>/dev/null || true; done
    rm -f "$STATE_ROOT/.made-dirs"
}

close_box() {
    local i left
    end_holder
    kill_strays
    kill_netns_processes
    if [ -e "/run/netns/$NAME" ]; then ip netns del "$NAME" 2>/dev/null || rm -f "/run/netns/$NAME"; fi
    remove_cgroups || say "cgroups left: $(for i in $(cgroup_dirs); do [ ! -d "$i" ] || echo "$i"; done | tr '\n' ' ')"
    # All mounts ended with the mount namespace. If one was left, the removal of files would reach through it.
    left=$(findmnt -rno TARGET | grep -F -e "$D/" || true)
    [ -z "$left" ] || die "these are still mounted, so nothing was removed: $left. Unmount them (umount -l) and run down again"
}
