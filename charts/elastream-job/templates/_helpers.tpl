{{- define "job.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "job.account" -}}
{{ .Values.serviceAccount.name | default (include "job.name" .) }}
{{- end }}

{{- define "job.claim" -}}
{{ .Values.runs.existingClaim | default (printf "%s-runs" (include "job.name" .)) }}
{{- end }}

{{- define "job.selector" -}}
app.kubernetes.io/name: elastream-job
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "job.labels" -}}
{{ include "job.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
