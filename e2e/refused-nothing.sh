#!/usr/bin/env bash
# Fails if the log of the operator in spillway-system, which the chart installed, names a call that the API server refused: the roles of
# the chart then lack a right. A pod without a log fails too. Called with kubectl on PATH, as in e2e/cluster/cluster run.
set -euo pipefail
pods=$(kubectl -n spillway-system get pods -l app.kubernetes.io/name=spillway -o name)
[ -n "$pods" ] || { echo "spillway-system has no pod of the operator" >&2; exit 1; }
for pod in $pods; do
    log=$(kubectl -n spillway-system logs "$pod" --all-containers)
    [ -n "$log" ] || { echo "$pod has no log" >&2; exit 1; }
    # With the plugin OwnerReferencesPermissionEnforcement an API server learns the chart's kinds seconds after it serves them. That is no
    # lack of a right, and the controller tries again.
    if grep -i forbidden <<< "$log" | grep -v "cannot find RESTMapping"; then
        echo "the chart's roles lack a right that the operator needs (see the lines above, of $pod)" >&2
        exit 1
    fi
done
