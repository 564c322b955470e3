{{/* Prefix of all names, short enough for the longest suffix and for those of pods. */}}
{{- define "turnmill-team.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "turnmill-team.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: turnmill
{{- end -}}

{{/* Labels that select the pods of one component: (list $ "tool-server"). */}}
{{- define "turnmill-team.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $root.Release.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* An image by its settings: (list $ .Values.toolServer.image "own"); only turnmill's own images have the common registry and tag. */}}
{{- define "turnmill-team.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $own := eq (index . 2) "own" -}}
{{- $name := $image.repository -}}
{{- if and $own $root.Values.image.registry -}}
{{- $name = printf "%s/%s" $root.Values.image.registry $name -}}
{{- end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default (ternary ($root.Values.image.tag | default $root.Chart.AppVersion) "latest" $own) }}
{{- end -}}
{{- end -}}

{{- define "turnmill-team.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Security context of a pod under `restricted`; turnmill's images have this user, and the others accept it. */}}
{{- define "turnmill-team.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Security context of a container under `restricted`. */}}
{{- define "turnmill-team.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Spread the pods of one component over zones and nodes if there are several: (list $ "tool-server"). */}}
{{- define "turnmill-team.spread" -}}
{{- $selector := include "turnmill-team.selector" . -}}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{ $selector | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "turnmill-team.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "turnmill-team.toolServer" -}}{{ include "turnmill-team.fullname" . }}-tool-server{{- end -}}
{{- define "turnmill-team.gateway" -}}{{ include "turnmill-team.fullname" . }}-gateway{{- end -}}
{{- define "turnmill-team.store" -}}{{ include "turnmill-team.fullname" . }}-store{{- end -}}
{{- define "turnmill-team.view" -}}{{ include "turnmill-team.fullname" . }}-view{{- end -}}
{{- define "turnmill-team.ray" -}}{{ include "turnmill-team.fullname" . }}-ray{{- end -}}

{{- define "turnmill-team.toolServerUrl" -}}
http://{{ include "turnmill-team.toolServer" . }}.{{ .Release.Namespace }}.svc:5000
{{- end -}}

{{- define "turnmill-team.toolServerSecret" -}}
{{- .Values.toolServer.token.existingSecret | default (include "turnmill-team.toolServer" .) -}}
{{- end -}}

{{/* Environment variables with the URL of the tool servers and their token. */}}
{{- define "turnmill-team.toolServerEnv" -}}
- name: TURNMILL_TOOL_SERVER_URL
  value: {{ include "turnmill-team.toolServerUrl" . }}
{{- if .Values.toolServer.token.enabled }}
- name: TURNMILL_TOOL_SERVER_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "turnmill-team.toolServerSecret" . }}
      key: {{ .Values.toolServer.token.key }}
{{- end }}
{{- end -}}

{{/* The store's URL without its password. */}}
{{- define "turnmill-team.storeUrl" -}}
{{- $host := printf "%s.%s.svc:6379" (include "turnmill-team.store" .) .Release.Namespace -}}
{{- $own := ternary (printf "redis+cluster://%s" $host) (printf "redis://%s/0" $host) (gt (int .Values.store.cluster.primaries) 0) -}}
{{- .Values.store.external.url | default $own -}}
{{- end -}}

{{- define "turnmill-team.storeSecret" -}}
{{- if and .Values.store.external.url (not .Values.store.password.existingSecret) -}}
{{- fail "store.password.existingSecret is empty: a password that is made here is none that store.external.url knows. Name a Secret with its password." -}}
{{- end -}}
{{- .Values.store.password.existingSecret | default (include "turnmill-team.store" .) -}}
{{- end -}}

{{/* Secret with the passwords of the store's users; empty for a store outside the release whose users are not named. */}}
{{- define "turnmill-team.storeUsersSecret" -}}
{{- if .Values.store.users.existingSecret -}}
{{- .Values.store.users.existingSecret -}}
{{- else if not .Values.store.external.url -}}
{{- include "turnmill-team.store" . }}-users
{{- end -}}
{{- end -}}

{{/* Environment variables with the store's URL, and with user and password, which clients put into it: (list $ "trainer"). */}}
{{- define "turnmill-team.storeEnv" -}}
{{- $root := index . 0 -}}
{{- $user := index . 1 -}}
{{- $users := include "turnmill-team.storeUsersSecret" $root -}}
- name: TURNMILL_STORE_URL
  value: {{ include "turnmill-team.storeUrl" $root | quote }}
{{- if $users }}
- name: TURNMILL_STORE_USER
  value: {{ $user }}
{{- end }}
- name: TURNMILL_STORE_PASSWORD
  valueFrom:
    secretKeyRef:
      {{- if $users }}
      name: {{ $users }}
      key: {{ $user }}
      {{- else }}
      name: {{ include "turnmill-team.storeSecret" $root }}
      key: {{ $root.Values.store.password.key }}
      {{- end }}
{{- end -}}

{{/* How fast replicas are added and removed: .Values.toolServer or .Values.gateway. */}}
{{- define "turnmill-team.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
    - {type: Pods, value: 4, periodSeconds: 15}
scaleDown:
  stabilizationWindowSeconds: {{ .autoscaling.scaleDownSeconds }}
  policies:
    - {type: Percent, value: 50, periodSeconds: 30}
{{- end -}}
