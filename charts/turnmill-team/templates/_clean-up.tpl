{{/* A pod that deletes a run's data in the store; the operator sets its arguments. */}}
{{- define "turnmill-team.cleanUpTemplate" -}}
metadata:
  labels:
    {{- include "turnmill-team.selector" (list . "clean-up") | nindent 4 }}
    {{- include "turnmill-team.labels" . | nindent 4 }}
spec:
  {{- include "turnmill-team.pullSecrets" . | nindent 2 }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  securityContext: {{ include "turnmill-team.podSecurity" . | nindent 4 }}
  containers:
    - name: clean-up
      image: {{ include "turnmill-team.image" (list . .Values.toolServer.image "own") | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [turnmill]
      env: {{ include "turnmill-team.storeEnv" (list . "clean-up") | nindent 8 }}
      resources:
        requests: {cpu: 50m, memory: 128Mi, ephemeral-storage: 16Mi}
        limits: {memory: 256Mi, ephemeral-storage: 128Mi}
      securityContext: {{ include "turnmill-team.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: temporary, mountPath: /tmp}
  volumes:
    - name: temporary
      emptyDir: {sizeLimit: 64Mi}
{{- end -}}
