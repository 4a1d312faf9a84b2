#!/bin/sh
# The demo agent: does nothing useful, but is seen alive in its log and ends at once and cleanly when asked to.
# With an item of work (SPILLWAY_ITEM) it takes as many steps as its task says and ends; without, it goes on for ever.
# `sleep & wait` and not `sleep`: a shell runs its trap only between commands, and wait is the one it interrupts.
trap 'echo "agent: asked to stop, bye"; exit 0' TERM INT
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
