{{- define "sei-operator.name" -}}
{{- default (default "sei-operator" .Values.nameOverride) .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sei-operator.serviceAccount" -}}
{{- default (include "sei-operator.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "sei-operator.selector" -}}
app.kubernetes.io/name: {{ default "sei-operator" .Values.nameOverride }}
app.kubernetes.io/instance: {{ include "sei-operator.name" . }}
{{- end -}}

{{- define "sei-operator.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
{{ include "sei-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "sei-operator.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The ConfigMap with the platform configuration; there is exactly one. */}}
{{- define "sei-operator.platform" -}}
{{- $given := not (empty .Values.platform.config) -}}
{{- $existing := .Values.platform.existingConfigMap -}}
{{- if and $given $existing -}}
{{- fail "set platform.config or platform.existingConfigMap, not both" -}}
{{- else if $existing -}}
{{- $existing -}}
{{- else if $given -}}
{{- include "sei-operator.name" . }}-platform
{{- else -}}
{{- fail "set platform.config (config/samples/install/platform.yaml is an example) or platform.existingConfigMap" -}}
{{- end -}}
{{- end -}}

{{/* The annotations of an object: its own, and those of all objects. */}}
{{- define "sei-operator.annotations" -}}
{{- with merge (dict) (default dict .own) .root.Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}
