{{/* A rule that leads to the store, the team's own or one that is run elsewhere. */}}
{{- define "turnmill-team.egressToStore" -}}
{{- if .Values.store.external.url -}}
{{- with .Values.store.external.cidrs -}}
- to:
    {{- range . }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    - {port: {{ include "turnmill-team.storePort" $ }}, protocol: TCP}
{{- end -}}
{{- else -}}
- to:
    - podSelector: {matchLabels: {{ include "turnmill-team.selector" (list . "store") | fromYaml | toJson }}}
  ports:
    - {port: 6379, protocol: TCP}
{{- end -}}
{{- end -}}

{{- define "turnmill-team.storePort" -}}
{{- $host := (urlParse .Values.store.external.url).host -}}
{{ regexFind ":[0-9]+$" $host | trimPrefix ":" | default "6379" }}
{{- end -}}
