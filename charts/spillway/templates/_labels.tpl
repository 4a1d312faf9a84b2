{{/* Labels of objects and pods. */}}

{{/* Labels that select the release's pods, of either component. They can never change on an existing Deployment. */}}
{{- define "spillway.releaseSelectorLabels" -}}
app.kubernetes.io/name: {{ include "spillway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "spillway.selectorLabels" -}}
{{ include "spillway.releaseSelectorLabels" . }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "spillway.gateway.selectorLabels" -}}
{{ include "spillway.releaseSelectorLabels" . }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "spillway.chartLabels" -}}
app.kubernetes.io/part-of: spillway
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
`spillway.userLabels` (list LABELS...): labels from the values, of which later ones win. Labels that the chart sets are left out, also
where the schema is not checked: a label twice, or another value of a label that selects pods, would break the release.
*/}}
{{- define "spillway.userLabels" -}}
{{- $all := dict }}
{{- range . }}{{ $all = mergeOverwrite $all (deepCopy (. | default dict)) }}{{ end }}
{{- range $key, $value := omit $all "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/part-of" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{- if not (hasPrefix "spillway.dev/" $key) }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The labels of all objects but their selectors, with those of the values. */}}
{{- define "spillway.commonLabels" -}}
{{ include "spillway.chartLabels" . }}
{{- include "spillway.userLabels" (list (.Values.global).commonLabels) }}
{{- end }}

{{/* `spillway.objectLabels` (list $ SELECTOR_LABELS LABELS): the labels of an object that has labels of its own in the values. */}}
{{- define "spillway.objectLabels" -}}
{{- $root := index . 0 -}}
{{ index . 1 }}
{{ include "spillway.chartLabels" $root }}
{{- include "spillway.userLabels" (list ($root.Values.global).commonLabels (index . 2)) }}
{{- end }}

{{/* `spillway.podLabels` (list $ SELECTOR_LABELS): the labels of a component's pods. */}}
{{- define "spillway.podLabels" -}}
{{- $root := index . 0 -}}
{{ index . 1 }}
{{- include "spillway.userLabels" (list ($root.Values.global).commonLabels $root.Values.podLabels) }}
{{- end }}

{{- define "spillway.labels" -}}
{{ include "spillway.selectorLabels" . }}
{{ include "spillway.commonLabels" . }}
{{- end }}

{{- define "spillway.gateway.labels" -}}
{{ include "spillway.gateway.selectorLabels" . }}
{{ include "spillway.commonLabels" . }}
{{- end }}
