#!/bin/sh
# Codex as an agent's program, once for each item of work (agent.run: PerItem): the task is on standard input, the last
# message is the item's result, and Codex's exit code is the program's. Its settings are $HOME/.codex/config.toml, which a
# pool brings by agent.files. Arguments are handed on to `codex exec`.
#
# Codex keeps databases beside its settings, and may change them: they are copied before each item, so that each begins with
# what the pool brings. Not below TMPDIR, where it refuses to put helpers of its own.
set -eu
export CODEX_HOME="$HOME/codex"
# It wants a key, which the gateway throws away.
export OPENAI_API_KEY="${OPENAI_API_KEY:-held-by-spillway}"
mkdir -p "$CODEX_HOME"
cp "$HOME/.codex/config.toml" "$CODEX_HOME/config.toml"
# The pod is the sandbox, and nobody is there to be asked. No session is kept: the next item has nothing to do with it.
exec codex exec --skip-git-repo-check --sandbox danger-full-access --ephemeral \
    --output-last-message "${SPILLWAY_RESULT_FILE:-/dev/null}" "$@" -
