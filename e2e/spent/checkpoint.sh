#!/bin/sh
# Reports the step from which another attempt could continue.
exec spillway progress --checkpoint "after step $(tail -n 1 "$HOME/done")"
