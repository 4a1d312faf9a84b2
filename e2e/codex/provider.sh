# shellcheck shell=bash disable=SC2154  # the sourcing script sets state
# The scripted model server in a cluster, in the place of a provider: its key, its Secret, its Deployment. The demo (steps.sh)
# and tests/clients/cluster.sh source this and set:
#   inside   a function that runs its arguments in the cluster
#   state    a folder of their own, for keys
provider_address=10.96.0.80   # as in model-server.yaml

# certificate NAME... : makes a certificate for the Service's address and these names, by an authority whose key is then deleted.
# It makes a token too.
certificate() {
    local names="IP:$provider_address"
    [ $# = 0 ] || names+=$(printf ',DNS:%s' "$@")
    if [ "$(cat "$state/names" 2> /dev/null)" = "$names" ] && openssl x509 -checkend 86400 -noout -in "$state/tls.crt" > /dev/null; then
        return 0
    fi
    rm -rf "$state"; mkdir -p "${state%/*}"; mkdir -m 700 "$state"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=scripted model server CA" \
        -keyout "$state/ca.key" -out "$state/ca.crt" 2> /dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=model-server" \
        -keyout "$state/tls.key" -out "$state/tls.csr" 2> /dev/null
    openssl x509 -req -in "$state/tls.csr" -CA "$state/ca.crt" -CAkey "$state/ca.key" -CAcreateserial -days 30 \
        -extfile <(printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\nsubjectAltName=%s' "$names") \
        -out "$state/tls.crt" 2> /dev/null
    rm "$state/ca.key"
    head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$state/token"
    printf '%s' "$names" > "$state/names"   # written last: then the folder is complete
}

# provider CREDENTIALS : starts it in namespace models. It accepts these credentials (NAME=TOKEN,...). It is restarted, and counts
# from zero, only after a change.
provider() {
    local content
    # From files, because every process of the machine can read a command line.
    printf '%s' "$1" > "$state/credentials"
    content=$({ cat "$state/tls.crt" "$state/credentials"; tar -xOf target/images/model-server.tar manifest.json; } | sha256sum | cut -c1-16)
    sed '/^---$/,$d' e2e/codex/model-server.yaml | inside kubectl apply --server-side -f -
    inside kubectl -n models create secret generic model-server --dry-run=client -o yaml \
        --from-file="$state/tls.crt" --from-file="$state/tls.key" --from-file="$state/credentials" | inside kubectl apply --server-side -f -
    sed "s/CONTENT/$content/" e2e/codex/model-server.yaml | inside kubectl apply --server-side -f -
    inside kubectl -n models rollout status deployment/model-server --timeout=2m
}

# credential NAMESPACE NAME ORIGIN : makes the Secret that a pool names, with the token that the provider accepts.
credential() {
    printf '%s' "$3" > "$state/origin"
    inside kubectl -n "$1" create secret generic "$2" --type=spillway.dev/model-credential --dry-run=client -o yaml \
        --from-file="$state/origin" --from-file="$state/token" | inside kubectl apply --server-side -f -
}

# The last requests that the model server received.
requests() { inside kubectl get --raw /api/v1/namespaces/models/services/https:model-server:8443/proxy/requests; }

# The model server's counts.
count() { inside kubectl get --raw /api/v1/namespaces/models/services/https:model-server:8443/proxy/count; }
