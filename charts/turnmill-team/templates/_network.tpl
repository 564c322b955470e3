{{/* A rule for traffic to the store, the release's own or an external one. */}}
{{- define "turnmill-team.egressToStore" -}}
{{- if .Values.store.external.url -}}
{{- if .Values.store.external.cidrs -}}
- to:
    {{- range .Values.store.external.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    - {port: {{ include "turnmill-team.storePort" . }}, protocol: TCP}
{{- else if not (and .Values.trainer.egress .Values.toolServer.egress) -}}
{{- fail "store.external.cidrs is empty: no policy would lead to store.external.url. Name the CIDRs that it lies in, lead there by rules of your own (trainer.egress and toolServer.egress), or set networkPolicy.enabled to false." -}}
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
