# shellcheck shell=bash disable=SC2154,SC2119  # inside, cluster and started are the demo's
# Codex in the demo, called by e2e/demo.sh. Codex works through a queue with a scripted model server, a pool scales from 0 with its
# work and back, one agent calls a program outside of its sandbox, one runs out of its budget, and Spillway's token counts are compared
# with those of the provider.
state=target/codex-demo
. e2e/codex/provider.sh
origin=https://$provider_address:8443
items=(workitem/codex-1 workitem/codex-2 workitem/codex-3 workitem/codex-4)
# The reason why Codex is left out; empty if it is not.
left_out=''

# Codex comes from npm, which some networks cannot reach. Without it the demo is shorter, and says so.
codex_image() {
    echo "Codex's image (its package comes from npm, once)"
    if make --no-print-directory images-codex > target/demo-codex.log 2>&1; then return 0; fi
    left_out=$(sed -n 's/^images: //p' target/demo-codex.log | tail -n 1)
    # Any other error is a fault.
    [ -n "$left_out" ] || { tail -n 20 target/demo-codex.log >&2; exit 1; }
    left_out+=" (target/demo-codex.log)"
}

# On a user's own cluster the provider's fixed address may be outside the range of Services.
codex_fits() {
    local said
    if [ -n "$left_out" ] || inside kubectl -n models get service model-server > /dev/null 2>&1; then return 0; fi
    said=$(inside kubectl -n default create service clusterip model-server --tcp=8443 --clusterip="$provider_address" --dry-run=server 2>&1) ||
        left_out="its model server cannot have the address $provider_address in this cluster: $said"
}

# Loads the image of 380 MB only if the node does not have it.
codex_load() {
    local id
    "${cluster[@]}" load target/images/model-server.tar
    id=$(tar -xOf target/images/codex-agent.tar manifest.json | jq -r '.[0].Config | rtrimstr(".json")')
    if [ -z "${SPILLWAY_KUBECONFIG:-}" ] && inside ctr images ls -q | grep -qx localhost/spillway/codex-agent:dev &&
        inside ctr content ls -q | grep -qx "sha256:$id"; then return 0; fi
    "${cluster[@]}" load target/images/codex-agent.tar
}

# Starts the provider, and writes values for the chart: the provider's origin, and token limits for coding agents.
codex_values() {
    if [ -n "$left_out" ]; then echo '{}' > target/demo-values.json; return 0; fi
    certificate
    provider "demo=$(cat "$state/token")"
    jq -n --arg origin "$origin" --rawfile ca "$state/ca.crt" \
        '{gateway: {modelOrigins: [{origin: $origin, allowPrivate: true, caBundle: $ca}]}, clusterBudget: {profile: "coding"}}' \
        > target/demo-values.json
}

codex_apply() {
    credential demo openai-credential "$origin"
    # The key of the Toolset. No agent's pod has it.
    [ -s "$state/release-key" ] || head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$state/release-key"
    inside kubectl -n demo create secret generic release-key --from-file=token="$state/release-key" --dry-run=client -o yaml |
        inside kubectl apply --server-side -f -
    inside kubectl apply --server-side --force-conflicts -k e2e/codex
    # Before there is work, the pools have no agents.
    inside kubectl -n demo wait --for=condition=Ready agentpool/codex agentpool/codex-small toolset/release --timeout=2m
    codex_look || true
    inside kubectl apply --server-side --force-conflicts -f e2e/codex/workitems.yaml
}

# Prints the number of agents and the phases of the items, if this line differs from the last. Succeeds when all items are done
# and no agent is left.
codex_look() {
    local look
    look=$(inside kubectl -n demo get --ignore-not-found agentpool/codex agentpool/codex-small "${items[@]}" -o json | jq -r '
        (.items | map({key: .metadata.name, value: (.status // {})}) | from_entries) as $s
        | ([$s["codex-1", "codex-2", "codex-3"] | select(.) | .phase // "Pending"] | group_by(.) | map("\(length) \(.[0])") | join(", ")) as $phases
        | ([$s["codex-4"].attemptHistory[]?.message // ""] | any(contains("Budget/codex-small"))) as $refused
        | "agents of codex: \($s.codex.agents // 0), its items: \($phases | if . == "" then "none" else . end); of codex-small: \($s["codex-small"].agents // 0)\(if $refused then ", its item was refused tokens" else "" end)",
          ($phases == "3 Succeeded" and $refused and ($s.codex.agents // 0) == 0 and ($s["codex-small"].agents // 0) == 0)') || return 1
    if [ "${look%$'\n'*}" != "$looked" ]; then
        looked=${look%$'\n'*}
        printf '  [%4ds] %s\n' $(($(date +%s) - started)) "$looked"
    fi
    [ "${look##*$'\n'}" = true ]
}
looked=''

codex_work() {
    local end=$((SECONDS + 400))
    until codex_look; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 1
    done
}

# Prints a line for each token count.
codex_numbers() {
    local told="$1" agents budgets
    agents=$(inside kubectl -n demo get agents -l 'spillway.dev/pool in (codex,codex-small)' -o json)
    budgets=$(inside kubectl -n demo get budgets codex codex-small -o json)
    printf '%9s  counted by the provider\n' "$told"
    printf '%9s  status of the Agents\n' "$(jq '[.items[].status.tokens.used // 0] | add // 0' <<< "$agents")"
    printf '%9s  status of the WorkItems\n' "$(inside kubectl -n demo get "${items[@]}" -o json | jq '[.items[].status.tokens.used // 0] | add // 0')"
    # A call counts at each limit of its Budget: of two limits one is enough.
    printf '%9s  status of the Budgets\n' "$(jq '[.items[].status.windows[]? | select(.name != "hourly") | .used] | add // 0' <<< "$budgets")"
    printf '%9s  status of the ClusterBudget\n' "$(inside kubectl get clusterbudget default -o json |
        jq '[.status.namespaces[]? | select(.name == "demo") | .windows[]?.used] | add // 0')"
}

# codex_counted PATIENCE : waits until Spillway's counts equal the provider's. Statuses are written up to half a minute late.
codex_counted() {
    local told numbers end=$((SECONDS + $1))
    while :; do
        told=$(count | jq .all.told.all)
        numbers=$(codex_numbers "$told")
        [ "$(awk '{ print $1 }' <<< "$numbers" | sort -u | wc -l)" != 1 ] || break
        [ "$SECONDS" -lt "$end" ] || { printf '\nTokens:\n%s\n' "$numbers"; return 1; }
        sleep 2
    done
    printf '\nThe same tokens, counted in five places:\n%s\n' "$numbers"
}

codex_results() {
    printf '\n'
    inside kubectl -n demo get "${items[@]}" -o custom-columns=ITEM:.metadata.name,PHASE:.status.phase,TOKENS:.status.tokens.used,RESULT:.status.result
    printf '\nThe message of codex-4 about its budget, which ended in the middle of its task:\n'
    inside kubectl -n demo get workitem codex-4 -o json | jq -r '[.status.attemptHistory[]?.message // "" | split("\n")[] | select(contains("Budget/"))] | last // "nothing"' | sed 's/^/  /'
}

# Prints the record of the call of codex-3 in the audit log of the bridge. A record is written before the program starts.
codex_call() {
    local records
    records=$(inside kubectl -n demo logs deployment/release-toolset -c bridge | jq -Rc 'fromjson? | select(.hash)')
    # The last call: a bridge that was not replaced has the records of earlier runs.
    records=$(jq -sc 'map(select(.event == "Start" and .program == "sign_release")) as $calls | .[] | select(.auditId == $calls[-1].auditId)' <<< "$records")
    [ "$(jq -r 'select(.event == "End") | .status' <<< "$records")" = ok ] || { printf '\nThe bridge has no record of a call:\n%s\n' "$records"; return 1; }
    printf '\nThe agent of codex-3 called a program outside of its sandbox, with a key that no agent has. The audit log of the bridge:\n'
    jq -r 'if .event == "Start" then "  \(.event) \(.program) \(.arguments | tojson), by \(.caller.name) for the item \(.caller.item)"
        else "  \(.event) \(.status), exit code \(.exitCode), after \(.durationMilliseconds) ms" end' <<< "$records"
}

# Runs all of it. Results of an earlier run are shown and not compared: ended Agents are kept for an hour, and a restarted
# provider has lost its counts.
codex_show() {
    codex_work || return 1
    if [ "$codex_before" != 3 ]; then codex_counted 90 || return 1
    elif ! codex_counted 0; then echo "(An earlier run did these items. Objects that are gone since then are not counted.)"; fi
    codex_results
    # A bridge that was replaced since an earlier run has no record of it.
    codex_call || [ "$codex_before" = 3 ]
}

# The number of items that are done already.
codex_done() {
    inside kubectl -n demo get workitems -o json 2> /dev/null |
        jq '[.items[] | select((.metadata.name | IN("codex-1", "codex-2", "codex-3")) and .status.phase == "Succeeded")] | length'
}
