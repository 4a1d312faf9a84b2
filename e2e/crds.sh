#!/usr/bin/env bash
# Applies the CRDs to the cluster of KUBECONFIG, and waits until objects may have owners of our kinds. With the admission plugin
# OwnerReferencesPermissionEnforcement an API server learns new kinds seconds after it serves them, and tests would begin with refusals.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kubectl apply --server-side -k crds > /dev/null
owned='{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "namespace": "default", "ownerReferences": [
    {"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "name": "owner", "uid": "owner", "blockOwnerDeletion": true}]}}'
for _ in $(seq 60); do
    if said=$(kubectl create --dry-run=server -f - <<< "$owned" 2>&1); then exit 0; fi
    sleep 1
done
echo "the API server takes no owner of our kinds: $said" >&2
exit 1
