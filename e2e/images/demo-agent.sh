#!/bin/sh
# The demo agent: does nothing useful, but is seen alive in its log and ends at once and cleanly when asked to.
# `sleep & wait` and not `sleep`: a shell runs its trap only between commands, and wait is the one it interrupts.
trap 'echo "agent: asked to stop, bye"; exit 0' TERM INT
n=0
while :; do
    n=$((n + 1))
    echo "agent: $(id -un 2>/dev/null || id -u) on $(hostname), step $n"
    sleep "${AGENT_PERIOD:-5}" &
    wait $!
done
