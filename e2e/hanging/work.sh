#!/bin/sh
# Does one item: commands that hang until they are ended, then commands that work.
set -u
for number in 1 2 3 4 5 6 7 8 9 10; do
    spillway progress "command $number hangs"
    spillway exec --timeout 1 -- sleep 600
    [ $? = 124 ] || exit 1
done
refused=$(spillway exec -- true 2>&1) && { echo "the eleventh command was not refused" >&2; exit 1; }
echo "$refused" | tee "$SPILLWAY_RESULT_FILE" >&2
spillway progress "refused, and waits"
until spillway exec -- true 2> /dev/null; do sleep 1; done
spillway exec -- true && spillway exec -- true
