{{/* Parts of pods, and the pods of hooks: `helm test`, and the one before `helm uninstall`. */}}

{{/* The Secrets for pulling the image, as part of a pod's spec. */}}
{{- define "spillway.imagePullSecrets" -}}
{{- with concat (.Values.imagePullSecrets | default list) ((.Values.global).imagePullSecrets | default list) | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The PriorityClass of the release's pods; empty: none. */}}
{{- define "spillway.priorityClassName" -}}
{{- .Values.priorityClassName | default (.Values.global).priorityClassName | default "" }}
{{- end }}

{{/*
`spillway.hookLabels` (list $ HOOK): the labels of a hook's pod. Not the name of the release's other pods: no Service and no budget of
the release selects it.
*/}}
{{- define "spillway.hookLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "spillway.name" $root | trunc 52 | trimSuffix "-" }}-{{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* `spillway.hookPod` (list $ HOOK ARGUMENTS): the template of a hook's pod, which runs the operator's own program once. */}}
{{- define "spillway.hookPod" -}}
{{- $root := index . 0 }}
{{- $hook := index . 1 -}}
restartPolicy: Never
serviceAccountName: {{ include "spillway.fullname" $root }}-{{ $hook }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with include "spillway.priorityClassName" $root }}
priorityClassName: {{ . }}
{{- end }}
{{- include "spillway.imagePullSecrets" $root }}
securityContext:
  {{- include "spillway.podSecurityContext" $root | nindent 2 }}
containers:
  - name: {{ $hook }}
    image: {{ include "spillway.image" $root | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args:
      {{- toYaml (index . 2) | nindent 6 }}
    env:
      - name: POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
    # The last lines say why it failed.
    terminationMessagePolicy: FallbackToLogsOnError
    resources:
      requests:
        cpu: 5m
        memory: 16Mi
      limits:
        memory: 64Mi
    securityContext:
      {{- include "spillway.containerSecurityContext" $root | nindent 6 }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
