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
Name of objects that have no namespace. It carries what is served, not where the release lives: a second release of the
same name that would serve the same clashes here, before two controllers fight.
*/}}
{{- define "spillway.clusterName" -}}
{{- $full := include "spillway.fullname" . }}
{{- if .Values.namespaceScope }}{{ printf "%s-%s" $full .Values.namespaceScope }}{{ else }}{{ $full }}{{ end }}
{{- end }}

{{- define "spillway.serviceAccountName" -}}
{{- default (include "spillway.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{/* What selects the controller's pods. It can never change on an existing Deployment. */}}
{{- define "spillway.selectorLabels" -}}
app.kubernetes.io/name: {{ include "spillway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "spillway.labels" -}}
{{ include "spillway.selectorLabels" . }}
app.kubernetes.io/part-of: spillway
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "spillway.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}{{ end }}
{{- end }}
{{- end }}

{{/*
What the controller does in the namespaces it serves. Every rule is a call in src/controller or src/cluster; a verb that
no call needs does not belong here.
*/}}
{{- define "spillway.workRules" -}}
# Pools are read; only their status is written.
- apiGroups: [spillway.dev]
  resources: [agentpools]
  verbs: [get, list, watch]
# Agents are made and deleted; patch is for their finalizer and for adopting those made by hand.
- apiGroups: [spillway.dev]
  resources: [agents]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [spillway.dev]
  resources: [agentpools/status, agents/status]
  verbs: [patch]
# An Agent blocks the deletion of its pool, a pod that of its Agent: where the API server checks that
# (OwnerReferencesPermissionEnforcement), setting such an owner needs this.
- apiGroups: [spillway.dev]
  resources: [agentpools/finalizers, agents/finalizers]
  verbs: [update]
# Named by pools: whether they exist.
- apiGroups: [spillway.dev]
  resources: [budgets, toolsets, workqueues]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- define "spillway.subject" -}}
- kind: ServiceAccount
  name: {{ include "spillway.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
