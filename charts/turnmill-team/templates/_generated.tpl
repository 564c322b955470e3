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

{{/* Secrets that are made for the release, with their keys, as JSON: those that no value names. */}}
{{- define "turnmill-team.madeSecrets" -}}
{{- $secrets := dict -}}
{{- with .Values.store -}}
{{- if not .password.existingSecret -}}
{{- $_ := set $secrets (include "turnmill-team.store" $) (list .password.key) -}}
{{- end -}}
{{- if not (or .external.url .users.existingSecret) -}}
{{- $_ := set $secrets (include "turnmill-team.storeUsersSecret" $) (list "trainer" "tool-server" "clean-up") -}}
{{- end -}}
{{- end -}}
{{- with .Values.toolServer -}}
{{- if and .enabled .token.enabled (not .token.existingSecret) -}}
{{- $_ := set $secrets (include "turnmill-team.toolServerSecret" $) (list .token.key) -}}
{{- end -}}
{{- end -}}
{{ toJson $secrets }}
{{- end -}}

{{/* Annotations of what the Jobs for passwords need, by its weight. */}}
{{- define "turnmill-team.passwordHook" -}}
helm.sh/hook: pre-install,pre-upgrade,post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
