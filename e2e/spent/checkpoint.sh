#!/bin/sh
# Where another attempt could go on from.
exec spillway progress --checkpoint "after step $(tail -n 1 "$HOME/done")"
