# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# SPILLWAY_KUBECONFIG names another cluster (kind, k3s, one in a cloud). Then these scripts start and stop nothing.

external() { # COMMAND ARGUMENT...
    local command=$1 context f; shift
    [ -r "$SPILLWAY_KUBECONFIG" ] || die "SPILLWAY_KUBECONFIG=$SPILLWAY_KUBECONFIG cannot be read"
    export KUBECONFIG=$SPILLWAY_KUBECONFIG
    case $command in
        packages | build | up | down) say "SPILLWAY_KUBECONFIG is set: '$command' does nothing, and the cluster of $KUBECONFIG is used" ;;
        kubeconfig) echo "$KUBECONFIG" ;;
        run) [ $# -gt 0 ] || die "run needs a command: run CMD..."; exec "$@" ;;
        status) exec kubectl get nodes ;;
        load)
            context=$(kubectl config current-context) || die "no current context in $KUBECONFIG"
            case $context in
                kind-*) for f in "$@"; do kind load image-archive "$f" --name "${context#kind-}"; done ;;
                *)
                    say "cannot load images into the cluster of context '$context'. Run one of these on each of its nodes:"
                    for f in "$@"; do
                        say "  k3s:          k3s ctr images import $f"
                        say "  containerd:   ctr -n k8s.io images import $f"
                        say "  minikube:     minikube image load $f"
                    done
                    die "no image was loaded. You can also push the images to a registry that the cluster can reach, and set their names in the chart's values"
                    ;;
            esac
            ;;
        *) die "'$command' works only with the local cluster; SPILLWAY_KUBECONFIG is set" ;;
    esac
}
