{{/* The existing password in the cluster, which upgrades keep, or a new one. Without a cluster every rendering has a new one. */}}
{{- define "turnmill-team.password" -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (include "turnmill-team.store" .) -}}
{{- if and $secret (hasKey (default dict $secret.data) .Values.store.password.key) -}}
{{ index $secret.data .Values.store.password.key | b64dec }}
{{- else -}}
{{ randAlphaNum 40 }}
{{- end -}}
{{- end -}}
