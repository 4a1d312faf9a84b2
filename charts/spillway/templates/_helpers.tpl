{{- define "spillway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters, so that every suffix below still fits into 63. */}}
{{- define "spillway.fullname" -}}
{{- $name := include "spillway.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/*
Name of objects that have no namespace. It names the namespace that is served, not that of the release. A second release of
the same name that would serve the same namespaces fails here, before two controllers conflict.
*/}}
{{- define "spillway.clusterName" -}}
{{- $full := include "spillway.fullname" . }}
{{- if .Values.namespaceScope }}{{ printf "%s-%s" $full .Values.namespaceScope }}{{ else }}{{ $full }}{{ end }}
{{- end }}

{{- define "spillway.serviceAccountName" -}}
{{- default (include "spillway.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "spillway.gateway.serviceAccountName" -}}
{{- default (printf "%s-gateway" (include "spillway.fullname" .)) .Values.gateway.serviceAccount.name }}
{{- end }}

{{/* Names that the controller, the gateway and their rights must agree on. */}}
{{- define "spillway.leaseName" -}}{{ include "spillway.fullname" . }}-controller{{- end }}
{{- define "spillway.caSecretName" -}}{{ include "spillway.fullname" . }}-ca{{- end }}
{{- define "spillway.gatewayTlsSecretName" -}}{{ include "spillway.fullname" . }}-gateway-tls{{- end }}
{{- define "spillway.gatewayServiceName" -}}{{ include "spillway.fullname" . }}-gateway{{- end }}
{{- define "spillway.metricsServiceName" -}}{{ include "spillway.fullname" . }}-metrics{{- end }}

{{- define "spillway.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}{{ end }}
{{- end }}
{{- end }}

{{/*
Rights of the controller in the namespaces it serves. Every rule is a call in src/controller or src/cluster. A verb that no
call needs does not belong here.
*/}}
{{- define "spillway.workRules" -}}
# The controller reads pools, and writes their status only.
- apiGroups: [spillway.dev]
  resources: [agentpools]
  verbs: [get, list, watch]
# The controller makes and deletes agents. It patches their finalizer, adopts those made by hand, and puts agents to sleep.
- apiGroups: [spillway.dev]
  resources: [agents]
  verbs: [get, list, watch, create, patch, delete]
# The controller makes items for agents that may submit them, and deletes items after their retention time. It never changes
# the spec of one.
- apiGroups: [spillway.dev]
  resources: [workitems]
  verbs: [get, list, watch, create, delete]
- apiGroups: [spillway.dev]
  resources: [workqueues]
  verbs: [get, list, watch]
- apiGroups: [spillway.dev]
  resources: [agentpools/status, agents/status, breakers/status, budgets/status, grants/status, toolsets/status, workitems/status, workqueues/status]
  verbs: [patch]
# An Agent blocks the deletion of its pool, a pod that of its Agent, and a Deployment that of its Toolset. Where the API server checks that
# (OwnerReferencesPermissionEnforcement), setting such an owner needs this right.
- apiGroups: [spillway.dev]
  resources: [agentpools/finalizers, agents/finalizers, budgets/finalizers, toolsets/finalizers]
  verbs: [update]
# Budgets limit pods. Their status holds what was spent. get: after a conflict of writes. The controller makes Budget/default
# where pools name no Budget, and deletes it with the last pool unless a person edited it. A create cannot be bound to a name.
- apiGroups: [spillway.dev]
  resources: [budgets]
  verbs: [get, list, watch, create]
- apiGroups: [spillway.dev]
  resources: [budgets]
  resourceNames: [default]
  verbs: [patch, delete]
# The status of a Breaker holds its open circuits. Breaker/default is made and deleted like Budget/default.
- apiGroups: [spillway.dev]
  resources: [breakers]
  verbs: [get, list, watch, create]
- apiGroups: [spillway.dev]
  resources: [breakers]
  resourceNames: [default]
  verbs: [patch, delete]
# The compute limits of Budgets.
- apiGroups: [""]
  resources: [resourcequotas, limitranges]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [spillway.dev]
  resources: [grants]
  verbs: [list, watch]
# Of Toolsets only the metadata is watched. get: the spec, when a Toolset is looked at.
- apiGroups: [spillway.dev]
  resources: [toolsets]
  verbs: [get, list, watch]
# The bridge of each Toolset, by objects with names of Toolsets, so no right can be bound to a name. The policy `controller`
# allows only names that end with -toolset, and only with the label of Spillway. The garbage collector deletes them.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# The claim of an agent's own volume (workspace.volumeClaimTemplate): made for the agent, deleted after its end.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create, delete]
# The gateway's CA, which pods mount, is one ConfigMap in every namespace with pools or Toolsets. A create cannot be bound to a
# name. get: the definitions of a Toolset, which must be immutable or be allowed to change.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [spillway-ca]
  verbs: [list, watch, patch]
# The NetworkPolicy of a namespace's agents, made before the first pod. It allows egress to the gateway only, and no ingress.
# It stays after the last pool. A create cannot be bound to a name. And the NetworkPolicy of each Toolset's pods, by the name of the
# Toolset: therefore get and patch cannot be bound to a name either. The policy `controller` allows these two sorts only.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [spillway-agents]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* The spec of ClusterBudget/default: the profile, merged with clusterBudget.spec. */}}
{{- define "spillway.clusterBudget" -}}
{{- $tokens := ternary (dict "hour" 2000000 "life" 500000) (dict "hour" 100000 "life" 10000) (eq .Values.clusterBudget.profile "coding") }}
{{- $hourly := dict "name" "hourly" "tokens" $tokens.hour "window" "Hour" }}
{{- $total := (.Values.clusterBudget.spec).agents | default dict }}
{{- $agents := ternary (min 100 (int $total.maxTotal)) 100 (hasKey $total "maxTotal") }}
{{- $kept := list (dict "name" "scheduler" "poolTypes" (list "scheduler") "percent" 20) }}
{{- $policy := dict "limits" (list $hourly) "reservations" $kept }}
{{- $spec := dict "namespaceSelector" dict "perNamespace" (dict "tokens" $policy "agents" (dict "maxConcurrent" $agents "reservations" $kept)) "defaults" (dict "bulkhead" (dict "lifetimeTokens" $tokens.life) "budget" (dict "tokens" (deepCopy $policy) "agents" (dict "reservations" $kept))) }}
{{- mergeOverwrite $spec (deepCopy .Values.clusterBudget.spec) | toJson }}
{{- end }}

{{- define "spillway.subject" -}}
- kind: ServiceAccount
  name: {{ include "spillway.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "spillway.gateway.subject" -}}
- kind: ServiceAccount
  name: {{ include "spillway.gateway.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* Pod Security `restricted`, and no more. */}}
{{- define "spillway.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "spillway.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "spillway.identityEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/* `spillway.spread` (list CONSTRAINTS SELECTOR_LABELS): null spreads over nodes, then zones, where possible. */}}
{{- define "spillway.spread" -}}
{{- $constraints := index . 0 }}
{{- if kindIs "invalid" $constraints }}
# matchLabelKeys: each rollout is spread by itself, without regard to the pods that it replaces.
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- index $ 1 | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- else if $constraints }}
topologySpreadConstraints:
  {{- toYaml $constraints | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Addresses of the API server, as policies see them, as JSON: ports, cidrs (none: unknown), found (whether Helm looked them up).
Helm asks the cluster at installation; `helm template` asks no cluster. Two sorts of addresses are not used: those behind port
443, which belong to managed clusters and change by themselves, and those of a cluster with Cilium, whose NetworkPolicies do
not match addresses of nodes.
*/}}
{{- define "spillway.apiServer" -}}
{{- $given := .Values.networkPolicy.apiServer }}
{{- $cidrs := $given.cidrs | default list }}
{{- $ports := $given.ports }}
{{- $found := false }}
{{- if and $given.lookup (not $cidrs) (not (.Capabilities.APIVersions.Has "cilium.io/v2")) }}
{{- $slice := lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes" }}
{{- $service := lookup "v1" "Service" "default" "kubernetes" }}
{{- $behind := list }}
{{- range $slice.ports }}{{ $behind = append $behind (int .port) }}{{ end }}
{{- if and $behind (not (has 443 $behind)) (has $slice.addressType (list "IPv4" "IPv6")) }}
{{- range $slice.endpoints }}
{{- range .addresses }}{{ $cidrs = append $cidrs (printf "%s/%s" . (ternary "128" "32" (contains ":" .))) }}{{ end }}
{{- end }}
{{- if $cidrs }}
{{- $found = true }}
{{- $ports = $behind }}
{{/* The Service's own address, for network plugins that apply policies before the Service's translation. */}}
{{- with $service.spec }}
{{- range .clusterIPs }}{{ $cidrs = append $cidrs (printf "%s/%s" . (ternary "128" "32" (contains ":" .))) }}{{ end }}
{{- range .ports }}{{ $ports = append $ports (int .port) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "ports" ($ports | uniq) "cidrs" ($cidrs | uniq) "found" $found | toJson }}
{{- end }}

{{/* The API server; and DNS, for clusters whose API server is given by name. */}}
{{- define "spillway.apiServerEgress" -}}
{{- $apiServer := include "spillway.apiServer" . | fromJson }}
# The API server. Its address as policies see it (after the Service's translation) differs from cluster to cluster. If
# neither networkPolicy.apiServer.cidrs nor the cluster gives it, any address is allowed on these ports.
- ports:
    {{- range $apiServer.ports }}
    - port: {{ int . }}
      protocol: TCP
    {{- end }}
  {{- with $apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- if .Values.networkPolicy.dns }}
# DNS, for providers of models, and for clusters whose API server is given by name.
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end }}
{{- end }}

{{/* The bridges of Toolsets, for the NetworkPolicies of the controller and the gateways. With Cilium too: it names pods only. */}}
{{- define "spillway.bridgeEgress" -}}
# The bridges of Toolsets. Each of them checks the certificate of the gateway or of the controller that calls it.
- ports:
    - port: 8444
      protocol: TCP
  to:
    - podSelector:
        matchLabels:
          app.kubernetes.io/name: spillway-bridge
      {{- with .Values.namespaceScope }}
      namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ . }}
      {{- else }}
      namespaceSelector: {}
      {{- end }}
{{- end }}

{{/* As `spillway.apiServerEgress`, for Cilium. */}}
{{- define "spillway.cilium.apiServerEgress" -}}
- toEntities: [kube-apiserver]
  toPorts:
    - ports:
        {{- range .Values.networkPolicy.apiServer.ports }}
        - port: {{ . | quote }}
          protocol: TCP
        {{- end }}
{{- if .Values.networkPolicy.dns }}
# DNS. Cilium reads the answers: toFQDNs matches only addresses that it learned from them.
- toEndpoints:
    - matchLabels:
        {{- range $key, $value := .Values.networkPolicy.cilium.dnsLabels }}
        {{ printf "k8s:%s" $key | quote }}: {{ $value | quote }}
        {{- end }}
  toPorts:
    - ports:
        - port: "53"
          protocol: ANY
      rules:
        dns:
          - matchPattern: "*"
{{- end }}
{{- end }}

{{/* gateway.modelOrigins for the gateway, without the fields that only policies need. */}}
{{- define "spillway.modelOrigins" -}}
{{- $all := list }}
{{- range .Values.gateway.modelOrigins }}{{ $all = append $all (omit . "cidrs") }}{{ end }}
{{- toJson $all }}
{{- end }}

{{/* The rules of egress, as controller and gateways read them. */}}
{{- define "spillway.egress" -}}
{{- toJson (omit .Values.egress "ports") }}
{{- end }}

{{/* The rules of git, as controller and gateways read them, without the fields that only policies need. */}}
{{- define "spillway.git" -}}
{{- $origins := list }}
{{- range .Values.git.origins }}{{ $origins = append $origins (omit . "cidrs") }}{{ end }}
{{- toJson (dict "origins" $origins "maxFetchBytes" (int64 .Values.git.maxFetchBytes) "maxPushBytes" (int64 .Values.git.maxPushBytes)) }}
{{- end }}

{{/* Where artifacts are kept, as gateways read it. */}}
{{- define "spillway.artifacts" -}}
{{- $store := dict }}
{{- with .Values.artifacts }}
{{- if and .enabled (eq .store "S3") }}
{{- if not .s3.bucket }}
{{- fail "artifacts.store is S3, and artifacts.s3.bucket is empty: name a bucket that exists" }}
{{- end }}
{{- $bucket := dict "bucket" .s3.bucket "region" .s3.region "virtualHosted" .s3.virtualHosted }}
{{- range $field := list "endpoint" "prefix" "caBundle" }}
{{- with index $.Values.artifacts.s3 $field }}{{ $bucket = set $bucket $field . }}{{ end }}
{{- end }}
{{- $store = dict "store" (dict "s3" $bucket) }}
{{- else if .enabled }}
{{- if and (not (has "ReadWriteMany" .volume.accessModes)) (not .volume.oneNode) }}
{{- fail "artifacts.volume.accessModes is ReadWriteOnce: all gateways mount the volume, and a rollout starts a new one before an old one ends. Use a class with ReadWriteMany, set artifacts.volume.oneNode to run all gateways on one node, or use artifacts.store S3" }}
{{- end }}
{{- $store = dict "store" (dict "volume" (dict "path" "/var/lib/spillway/artifacts")) }}
{{- end }}
{{- end }}
{{- toJson $store }}
{{- end }}

{{/* The claim of the volume with artifacts; empty without one. */}}
{{- define "spillway.artifactsClaim" -}}
{{- if and .Values.artifacts.enabled (eq .Values.artifacts.store "Volume") }}
{{- .Values.artifacts.volume.existingClaim | default (printf "%s-artifacts" (include "spillway.fullname" .)) }}
{{- end }}
{{- end }}

{{/* What pools open (egress), as the gateways' NetworkPolicy needs it. */}}
{{- define "spillway.egressPeers" -}}
{{- with .Values.egress }}
{{- if and .enabled .ports }}
# Destinations that pools open (egress.ports). A policy cannot name hosts. The gateway checks each name and each address.
- ports:
    {{- range .ports }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  to:
    - ipBlock:
        cidr: 0.0.0.0/0
        except: [10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]
    - ipBlock:
        cidr: 2000::/3
{{- end }}
{{- if and .enabled .allowPrivate }}
# Destinations that may have private addresses (egress.allowPrivate).
- ports:
    {{- $ports := list }}
    {{- range .allowPrivate }}{{ $ports = append $ports (regexFind "[0-9]+$" .) }}{{ end }}
    {{- range $ports | uniq | sortAlpha }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* gateway.modelOrigins, git.origins and artifacts.s3 for policies, as JSON: a list of host, port, private, cidrs. */}}
{{- define "spillway.originTargets" -}}
{{- $all := list }}
{{- $origins := concat .Values.gateway.modelOrigins .Values.git.origins }}
{{- with .Values.artifacts }}
{{- if and .enabled (eq .store "S3") }}
{{- $url := .s3.endpoint | default (printf "https://%ss3.%s.amazonaws.com" (ternary (printf "%s." .s3.bucket) "" .s3.virtualHosted) .s3.region) }}
{{- $origins = append $origins (dict "origin" $url "allowPrivate" .s3.allowPrivate "cidrs" .s3.cidrs) }}
{{- end }}
{{- end }}
{{- range $origins }}
{{- $port := regexFind ":[0-9]+$" .origin | trimPrefix ":" | default (ternary "80" "443" (hasPrefix "http://" .origin)) }}
{{- $host := .origin | trimPrefix "https://" | trimPrefix "http://" | lower }}
{{- $all = append $all (dict "host" (regexReplaceAll ":[0-9]+$" $host "") "port" $port "private" (default false .allowPrivate) "cidrs" (.cidrs | default list)) }}
{{- end }}
{{- toJson ($all | uniq) }}
{{- end }}

{{/* `spillway.originPorts` (list TARGETS PRIVATE): the ports of origins without addresses that may, or may not, be private. */}}
{{- define "spillway.originPorts" -}}
{{- $private := index . 1 }}
{{- $ports := list }}
{{- range index . 0 }}
{{- if and (eq .private $private) (not .cidrs) }}
{{- $ports = append $ports .port }}
{{- end }}
{{- end }}
{{- range $ports | uniq | sortAlpha }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end }}

{{/* Probes and metrics, of either component. */}}
{{- define "spillway.httpIngress" -}}
# Probes and metrics.
- ports:
    - port: 8080
      protocol: TCP
  {{- with .Values.networkPolicy.ingressFrom }}
  from:
    {{- toYaml . | nindent 4 }}
    # `helm test`.
    - podSelector:
        matchLabels:
          {{- include "spillway.hookLabels" (list $ "test") | nindent 10 }}
  {{- end }}
{{- end }}

{{/* The controller's user name for the API server. */}}
{{- define "spillway.username" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "spillway.serviceAccountName" .) }}
{{- end }}

{{/* Namespaces that admission policies apply to: those that the release serves. */}}
{{- define "spillway.policyNamespaces" -}}
{{- with .Values.namespaceScope -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ . }}
{{- else -}}
namespaceSelector: {}
{{- end }}
{{- end }}

{{/* The same, and the release's own namespace. */}}
{{- define "spillway.ownNamespaces" -}}
{{- if .Values.namespaceScope -}}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: In
      values: {{ list .Values.namespaceScope .Release.Namespace | uniq | toJson }}
{{- else -}}
namespaceSelector: {}
{{- end }}
{{- end }}

{{/* `spillway.webhooks`: the controller's file that lists the webhooks. */}}
{{- define "spillway.webhooks" -}}
{{- $all := list }}
{{- range .Values.notifications.webhooks }}
{{- $folder := printf "/var/run/secrets/spillway.dev/webhooks/%s" .name }}
{{- $one := dict "name" .name "format" (.format | default "Generic") "urlFile" (printf "%s/url" $folder) "caBundle" (.caBundle | default "") "namespaces" (.namespaces | default list) }}
{{- if .secretRef.authorizationKey }}
{{- $_ := set $one "authorizationFile" (printf "%s/authorization" $folder) }}
{{- end }}
{{- $all = append $all $one }}
{{- end }}
{{- toJson $all }}
{{- end }}
