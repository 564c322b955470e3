{{/* Prefix of all names. */}}
{{- define "turnmill.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "turnmill.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: turnmill
{{- end -}}

{{/* Labels that select the pods of one component: (list $ "operator"). */}}
{{- define "turnmill.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $root.Release.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "turnmill.image" -}}
{{- $image := .Values.operator.image -}}
{{- $name := $image.repository -}}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "turnmill.operator" -}}{{ include "turnmill.fullname" . }}-operator{{- end -}}

{{- define "turnmill.egressToDns" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- define "turnmill.egressToApiServer" -}}
- to:
    {{- range .Values.networkPolicy.apiServerCidrs }}
    - ipBlock: {cidr: {{ . }}{{ if eq . "0.0.0.0/0" }}, except: [169.254.0.0/16]{{ end }}}
    {{- end }}
  ports:
    - {port: 443, protocol: TCP}
    - {port: 6443, protocol: TCP}
{{- end -}}

{{/* Security context of a container under `restricted`. */}}
{{- define "turnmill.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "turnmill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Rights of the operator on jobs and their objects; it has none on secrets. */}}
{{- define "turnmill.operatorRules" -}}
- apiGroups: [turnmill.dev]
  resources: [agenttrainingjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [turnmill.dev]
  resources: [agenttrainingjobs/status]
  verbs: [patch]
- apiGroups: [turnmill.dev]
  resources: [agenttrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [turnmill-team]
  verbs: [get, list, watch]
# Why Kueue has not admitted a run.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  # Those of waiting pods are listed, as some reasons are nowhere else.
  verbs: [create, list, patch]
{{- end -}}
