# shellcheck shell=bash
# Tests of the profile on nodes (sandbox.nodeProfile of the chart). tests/chart.sh reads this file, and has its helpers.

np() { without_crds --set sandbox.nodeProfile.enabled=true --show-only templates/nodeprofile.yaml "$@"; }
check "the profile on nodes is off by default" lacks node-profile without_crds
check "a DaemonSet installs the profile on nodes" says "kind: DaemonSet" np
check "from the release's image" says 'image: "localhost/x:dev"' np --set image.repository=localhost/x --set image.tag=dev
check "into the kubelet's folder" says 'path: "/var/lib/kubelet/seccomp"' np
check "or another one" says 'path: "/data/kubelet/seccomp"' np --set sandbox.nodeProfile.folder=/data/kubelet/seccomp
check "refuses a folder that is none" refused folder np --set sandbox.nodeProfile.folder=/var/../etc
check "refuses a relative folder" refused folder np --set sandbox.nodeProfile.folder=seccomp
check "refuses an unknown value of the profile" refused folders np --set sandbox.nodeProfile.folders=/x
check "the profile takes a priority class" says "priorityClassName: high" np --set sandbox.nodeProfile.priorityClassName=high
check "tolerations" says "operator: Exists" np --set-json 'sandbox.nodeProfile.tolerations=[{"operator":"Exists"}]'
check "and labels of nodes" says "disk: ssd" np --set sandbox.nodeProfile.nodeSelector.disk=ssd
check "beside those of Linux" says "kubernetes.io/os: linux" np --set sandbox.nodeProfile.nodeSelector.disk=ssd
check "its pods have no capabilities" says "drop: [ALL]" np
check "no privilege escalation" says "allowPrivilegeEscalation: false" np
check "a root file system that is read-only" says "readOnlyRootFilesystem: true" np
one_folder() { [ "$(np | grep -c 'hostPath:')" = 1 ] && [ "$(np | grep -c 'mountPath:')" = 1 ]; }
check "and one folder of the node" one_folder
np_verbs() { [ "$(np | sed -n '/^kind: ClusterRole$/,/^---/p' | grep -E 'resources:|verbs:' | tr -d ' \n')" = "resources:[nodes]verbs:[get,patch]" ]; }
check "its account may get and patch nodes, and no more" np_verbs
check "rbac.create=false makes no role for it" lacks "kind: ClusterRole" np --set rbac.create=false
check "a policy binds it to its account" says 'request.userInfo.username == "system:serviceaccount:spillway-system:spillway-node-profile"' np
check "also in a namespace of its own" says 'request.userInfo.username == "system:serviceaccount:nodes:mine"' np --set sandbox.nodeProfile.namespace=nodes --set sandbox.nodeProfile.serviceAccount.create=false --set sandbox.nodeProfile.serviceAccount.name=mine
np_namespace() { ! np --set sandbox.nodeProfile.namespace=nodes | grep -E '^ *namespace: ' | grep -v 'namespace: nodes$'; }
check "where all of its objects are" np_namespace
check "it is refused without the policies that bind its rights" refused "needs admissionPolicies.enabled" np --set admissionPolicies.enabled=false
check "its account is no other component's" refused "an account of their own" np --set sandbox.nodeProfile.serviceAccount.create=false --set sandbox.nodeProfile.serviceAccount.name=spillway-gateway
check "nobody connects to its pods" says "ingress: []" np
check "no network policy without the others" lacks NetworkPolicy np --set networkPolicy.enabled=false
check "they reach the API server only" says 'cidr: "192.0.2.7/32"' np --set 'networkPolicy.apiServer.cidrs={192.0.2.7/32}'
check "with cilium by its entity" says 'toEntities: [kube-apiserver]' np --set networkPolicy.flavor=cilium
# The label is in the code and in the policy.
same_label() { grep -q "NODE_PROFILE_LABEL_PREFIX: &str = \"$(np | sed -n "s/^ *expression: \"'\(seccomp\.spillway\.dev[^']*\)'\"$/\1/p")\"" crates/api/src/names.rs; }
check "the policy has the label of the code" same_label
