# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Certificate authorities, certificates and kubeconfigs of one cluster. openssl makes them once, and `down` removes them.

make_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null; }

make_ca() {
    make_key "$1"
    openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 3650 -out "$1.crt" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
}

# make_cert NAME CA SUBJECT USAGE [SUBJECT_ALT_NAMES]
make_cert() {
    local ext="basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=$4\n"
    [ -z "${5:-}" ] || ext+="subjectAltName=$5\n"
    make_key "$1"
    openssl req -new -key "$1.key" -subj "$3" |
        openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 3650 -extfile <(printf '%b' "$ext") -out "$1.crt" 2>/dev/null
}

# make_kubeconfig FILE USER [PORT] : with USER's client certificate in it
make_kubeconfig() {
    cat > "$K/$1.conf" <<Y
apiVersion: v1
kind: Config
clusters: [{name: $NAME, cluster: {server: "https://$IP:${3:-6443}", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $2, user: {client-certificate-data: $(base64 -w0 "$2.crt"), client-key-data: $(base64 -w0 "$2.key")}}]
contexts: [{name: $NAME, context: {cluster: $NAME, user: $2}}]
current-context: $NAME
Y
    chmod 600 "$K/$1.conf"
}

make_certs() {
    [ ! -e "$K/.done" ] || return 0    # written last: an incomplete set is made again
    rm -rf "$P" "$K"; mkdir -p "$P" "$K"; chmod 700 "$P" "$K"
    (
        cd "$P" || exit 1
        make_ca ca; make_ca front-proxy-ca
        make_cert apiserver ca /CN=kube-apiserver serverAuth \
            "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$IP,IP:$API_SVC"
        make_cert kubelet-server ca "/O=system:nodes/CN=system:node:$NODE" serverAuth "DNS:$NODE,IP:$IP"
        make_cert apiserver-kubelet-client ca /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
        make_cert front-proxy-client front-proxy-ca /CN=front-proxy-client clientAuth
        make_cert admin ca /O=system:masters/CN=admin clientAuth
        make_cert controller-manager ca /CN=system:kube-controller-manager clientAuth
        make_cert scheduler ca /CN=system:kube-scheduler clientAuth
        make_cert kubelet ca "/O=system:nodes/CN=system:node:$NODE" clientAuth
        make_cert proxy ca /CN=system:kube-proxy clientAuth
        make_cert coredns ca /CN=e2e:coredns clientAuth
        make_cert netpol ca /CN=e2e:netpol clientAuth
        make_cert volumes ca /CN=e2e:volumes clientAuth
        openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out sa.key 2>/dev/null
        openssl pkey -in sa.key -pubout -out sa.pub
        for c in admin controller-manager scheduler kubelet proxy coredns netpol volumes; do make_kubeconfig $c $c; done
        make_kubeconfig admin2 admin 6444
    )
    touch "$K/.done"
}
