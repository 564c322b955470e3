{{/* What a Secret of the cluster has, which upgrades keep, or a new random word: (list $ NAME KEY). Without a cluster every rendering has a new one. */}}
{{- define "turnmill-team.generated" -}}
{{- $root := index . 0 -}}
{{- $key := index . 2 -}}
{{- $secret := lookup "v1" "Secret" $root.Release.Namespace (index . 1) -}}
{{- if and $secret (hasKey (default dict $secret.data) $key) -}}
{{ index $secret.data $key | b64dec }}
{{- else -}}
{{ randAlphaNum 40 }}
{{- end -}}
{{- end -}}
