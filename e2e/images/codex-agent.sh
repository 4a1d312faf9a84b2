#!/bin/sh
# Codex as an agent's program, once for each item of work (agent.run: PerItem): the task is on standard input, the last
# message is the item's result, and Codex's exit code is the program's. Its settings are $HOME/.codex/config.toml, which the
# pool's agent.files provides. Arguments are passed to `codex exec`.
#
# Codex keeps databases in the folder of its settings, and may change the settings. So they are copied before each item, and each
# item begins with the pool's settings. The copy is not below TMPDIR, because Codex refuses to write its helpers there.
set -eu
export CODEX_HOME="$HOME/codex"
# Codex requires a key. The gateway discards it.
export OPENAI_API_KEY="${OPENAI_API_KEY:-held-by-spillway}"
mkdir -p "$CODEX_HOME"
cp "$HOME/.codex/config.toml" "$CODEX_HOME/config.toml"
# The pool's Toolsets are MCP servers of Codex, at the sidecar: {"NAME":"URL",...}. Settings that name one of them are left as they are.
# `required`: otherwise Codex asks its model before a server has answered, and then its model has no tools of it.
for server in $(printf '%s' "${SPILLWAY_MCP_SERVERS:-}" | tr -d '{}"' | tr ',' ' '); do
    grep -qF "[mcp_servers.${server%%:*}]" "$CODEX_HOME/config.toml" ||
        printf '\n[mcp_servers.%s]\nurl = "%s"\nrequired = true\n' "${server%%:*}" "${server#*:}" >> "$CODEX_HOME/config.toml"
done
# The pod is the sandbox, and no person can answer questions. No session is kept, because items are independent.
exec codex exec --skip-git-repo-check --sandbox danger-full-access --ephemeral \
    --output-last-message "${SPILLWAY_RESULT_FILE:-/dev/null}" "$@" -
