# shellcheck shell=bash disable=SC2154  # inside and troubles are the demo's
# The demo's part about an agent whose tokens run out in the middle of its item. It runs after Codex's part, whose numbers it would
# change.
spent_agent() { inside kubectl -n demo get agents -l spillway.dev/pool=spent -o json | jq -r '[.items[] | select(.status.phase == "Paused")][0].metadata.name // empty'; }

spent_show() {
    local agent='' end=$((SECONDS + 300))
    inside kubectl apply --server-side --force-conflicts -k e2e/spent
    until inside kubectl -n demo wait --for=condition=Complete workitem/spent-1 --timeout=1s > /dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        [ -z "$agent" ] || continue
        agent=$(spent_agent)
        [ -n "$agent" ] || continue
        inside kubectl -n demo wait --for=condition=Checkpointed "agent/$agent" --timeout=2m
        # An item's progress is written up to five seconds late.
        inside kubectl -n demo wait --for=jsonpath='{.status.progress.checkpointRef}' workitem/spent-1 --timeout=30s > /dev/null || return 1
        printf '\nAn agent that has spent its tokens, with a part of its item done:\n'
        inside kubectl -n demo get agent "$agent" -o json |
            jq -r '.status.conditions[] | select(.type == "Paused" or .type == "Checkpointed") | "  \(.type)=\(.status) \(.reason): \(.message)"'
        inside kubectl -n demo get workitem spent-1 -o json | jq -r '"  its item is \(.status.phase), checkpoint \"\(.status.progress.checkpointRef)\""'
        printf 'A person grants it more tokens (kubectl spillway grant agent/%s 60k):\n' "$agent"
        inside env PATH="$PWD/$(plugin_folder):$PATH" kubectl spillway grant "agent/$agent" 60k -n demo | sed 's/^/  /'
    done
    inside kubectl -n demo get workitem spent-1 -o json | jq -r '"The agent continued and finished: \(.status.result | rtrimstr("\n")) (attempts: \(.status.attempts))"'
}
