#!/bin/sh
# The demo agent: it does no useful work, prints steps to its log, and ends at once on SIGTERM. With an item of work
# (SPILLWAY_ITEM) it takes the number of steps in its task and ends. Without an item it runs for ever.
# An item that it does not finish is not done: on SIGTERM its exit code is then not 0.
# `sleep & wait` instead of `sleep`: a shell runs its trap only between commands, and only `wait` is interrupted.
trap 'echo "agent: asked to stop, bye"; [ -z "${SPILLWAY_ITEM:-}" ] || exit 143; exit 0' TERM INT
task=
[ -z "${SPILLWAY_ITEM:-}" ] || task=$(cat)
case $task in
    *fail*) echo "agent: \"$task\" cannot be done"; exit 1 ;;
    [0-9]*) steps=${task%%[!0-9]*} ;;
    *) steps=3 ;;
esac
n=0
while [ -z "${SPILLWAY_ITEM:-}" ] || [ "$n" -lt "$steps" ]; do
    n=$((n + 1))
    echo "agent: $(id -un 2>/dev/null || id -u) on $(hostname), step $n${SPILLWAY_ITEM:+ of $steps for $SPILLWAY_ITEM}"
    sleep "${AGENT_PERIOD:-5}" &
    wait $!
done
echo "$n steps for \"$task\"" > "$SPILLWAY_RESULT_FILE"
