{{/* The password that is in the cluster, or a new one: upgrades keep it. Without a cluster it is new with every rendering. */}}
{{- define "turnmill-team.password" -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (include "turnmill-team.store" .) -}}
{{- if and $secret (hasKey (default dict $secret.data) .Values.store.password.key) -}}
{{ index $secret.data .Values.store.password.key | b64dec }}
{{- else -}}
{{ randAlphaNum 40 }}
{{- end -}}
{{- end -}}
