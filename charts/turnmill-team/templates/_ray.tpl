{{/* Parameters of `ray start` for a worker group: (list NAME GROUP). Ray's autoscaler needs them for a group without pods. */}}
{{- define "turnmill-team.rayStartParams" -}}
{{- $group := index . 1 -}}
{{- $params := dict "resources" (printf `"{\"accelerator_type:%s\": 1}"` $group.accelerator) -}}
{{- if eq $group.device "cpu" -}}
{{- /* CPUs are logical as well: a run has a dozen actors, and each takes one. */ -}}
{{- $params = merge $params (dict "num-cpus" "16" "num-gpus" (toString $group.gpusPerNode)) -}}
{{- else if not (hasSuffix "/gpu" (include "turnmill-team.gpuResource" $group)) -}}
{{- /* KubeRay counts GPUs by that suffix: neither partitions of one, nor those of a resource claim, have it. */ -}}
{{- $params = merge $params (dict "num-gpus" (toString $group.gpusPerNode)) -}}
{{- end -}}
{{ toYaml (mergeOverwrite $params (deepCopy $group.rayStartParams)) }}
{{- end -}}

{{/* Resources of a worker with its GPUs. */}}
{{- define "turnmill-team.groupResources" -}}
{{- $resources := deepCopy .resources -}}
{{- $name := include "turnmill-team.gpuResource" . -}}
{{- if and $name (eq .device "cuda") -}}
{{- $gpus := dict $name (toString .gpusPerNode) -}}
{{- $resources = mergeOverwrite $resources (dict "limits" $gpus "requests" $gpus) -}}
{{- end -}}
{{- with dig "pod" "resourceClaims" list . -}}
{{- $claims := list -}}
{{- range . -}}{{- $claims = append $claims (dict "name" .name) -}}{{- end -}}
{{- $_ := set $resources "claims" $claims -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* Resource by which pods of a group ask for GPUs; empty if they have resource claims. */}}
{{- define "turnmill-team.gpuResource" -}}
{{- if hasKey . "gpuResource" -}}{{ .gpuResource }}{{- else -}}nvidia.com/gpu{{- end -}}
{{- end -}}

{{/* Affinity of a pod, as YAML: of its group, of its GPU products and to the other pods of its run. */}}
{{- define "turnmill-team.rayAffinity" -}}
{{- $affinity := deepCopy (dig "affinity" dict .overlay) -}}
{{- with .gpuProducts -}}
{{- $product := dict "key" "nvidia.com/gpu.product" "operator" "In" "values" . -}}
{{- $terms := list -}}
{{- range dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- /* Terms are alternatives: each of them must name the product. */ -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (append (default list .matchExpressions) $product)) .) -}}
{{- end -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" $required) -}}
{{- end -}}
{{- with .closeTogether -}}
{{- $selector := dict "matchLabels" (dict "turnmill.dev/group" $.group) -}}
{{- $term := dict "topologyKey" . "labelSelector" $selector "matchLabelKeys" (list "turnmill.dev/job" "turnmill.dev/attempt") -}}
{{- $before := dig "podAffinity" "preferredDuringSchedulingIgnoredDuringExecution" list $affinity -}}
{{- $preferred := append $before (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- $affinity = mergeOverwrite $affinity (dict "podAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred)) -}}
{{- end -}}
{{- if $affinity }}{{ toYaml $affinity }}{{ end -}}
{{- end -}}

{{/* A Ray pod, head or worker: a dictionary of root, component, priority, image, resources, nodes and more. */}}
{{- define "turnmill-team.rayTemplate" -}}
{{- $root := .root -}}
{{- $trainer := $root.Values.trainer -}}
{{- $overlay := default dict .overlay -}}
metadata:
  labels:
    {{- include "turnmill-team.selector" (list $root .component) | nindent 4 }}
    {{- include "turnmill-team.labels" $root | nindent 4 }}
    {{- with .group }}
    turnmill.dev/group: {{ . }}
    {{- end }}
    {{- with $overlay.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Moving a pod of a run costs a restart of it.
    cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
    karpenter.sh/do-not-disrupt: "true"
    {{- with $overlay.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with $overlay.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if $overlay.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $overlay.resourceClaims }}
  resourceClaims: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .priority }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- include "turnmill-team.pullSecrets" $root | nindent 2 }}
  {{- if not .autoscaler }}
  serviceAccountName: {{ $trainer.serviceAccountName | default (printf "%s-trainer" (include "turnmill-team.fullname" $root)) }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  terminationGracePeriodSeconds: 60
  securityContext: {{ include "turnmill-team.podSecurity" $root | nindent 4 }}
  {{- include "turnmill-team.placement" . | nindent 2 }}
  {{- with include "turnmill-team.rayAffinity" (dict "overlay" $overlay "gpuProducts" .gpuProducts "closeTogether" .closeTogether "group" .group) }}
  affinity: {{ . | nindent 4 }}
  {{- end }}
  {{- if and .group (not .closeTogether) }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {turnmill.dev/group: {{ .group }}}
  {{- end }}
  containers:
    - name: ray
      image: {{ .image | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- if eq .device "cpu" }}
      # KubeRay runs it before Ray: it imports once, in the background, what every process of a run needs.
      args: [python -m turnmill.runs.fork_server]
      {{- end }}
      env:
        {{- include "turnmill-team.storeEnv" (list $root "trainer") | nindent 8 }}
        {{- if $root.Values.toolServer.enabled }}
        {{- include "turnmill-team.toolServerEnv" $root | nindent 8 }}
        {{- end }}
        # For the message of a run that cannot write there.
        - {name: TURNMILL_RUNS_CLAIM, value: {{ include "turnmill-team.claim" (list $root "runs") }}}
        {{- with concat $trainer.env (default list $overlay.env) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- if .group }}
        - {name: metrics, containerPort: 8080}
        {{- else }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: client, containerPort: 10001}
        - {name: metrics, containerPort: 8080}
        - {name: as-metrics, containerPort: 44217}
        - {name: dash-metrics, containerPort: 44227}
        - {name: turnmill, containerPort: 9464}
        {{- end }}
      resources: {{ .resources | nindent 8 }}
      {{- $security := include "turnmill-team.containerSecurity" $root | fromYaml }}
      {{- with $overlay.capabilities }}
      {{- $_ := set $security.capabilities "add" . }}
      {{- end }}
      securityContext: {{ toYaml $security | nindent 8 }}
      volumeMounts:
        - {name: temporary, mountPath: /tmp}
        - {name: runs, mountPath: /runs}
        {{- if $root.Values.storage.models.enabled }}
        - {name: models, mountPath: /models, readOnly: true}
        {{- end }}
        {{- if .sharedMemory }}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- end }}
        {{- with $trainer.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $overlay.containers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: temporary
      emptyDir: {sizeLimit: {{ $trainer.temporarySize }}}
    - name: runs
      persistentVolumeClaim: {claimName: {{ include "turnmill-team.claim" (list $root "runs") }}}
    {{- if $root.Values.storage.models.enabled }}
    - name: models
      persistentVolumeClaim: {claimName: {{ include "turnmill-team.claim" (list $root "models") }}, readOnly: true}
    {{- end }}
    {{- with .sharedMemory }}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ . }}}
    {{- end }}
    {{- if .autoscaler }}
    # What Kubernetes would mount into every container of the pod, and the runs' code reads: the autoscaler alone mounts it.
    - name: autoscaler-token
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3607}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
          - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
    {{- end }}
    {{- with $trainer.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The head: (list $ WITH_AUTOSCALER); KubeRay gives a head with an autoscaler a service account of its own. */}}
{{- define "turnmill-team.headTemplate" -}}
{{- $root := index . 0 -}}
{{- $trainer := $root.Values.trainer -}}
{{- $default := index $trainer.groups $trainer.defaultGroup -}}
{{- include "turnmill-team.rayTemplate" (dict
  "root" $root "component" "ray-head" "device" $default.device "autoscaler" (index . 1) "priority" $trainer.priorityClassName
  "image" (include "turnmill-team.image" (list $root $trainer.image "own"))
  "resources" (toYaml $trainer.head.resources)
  "nodeSelector" $trainer.head.nodeSelector "tolerations" $trainer.head.tolerations "overlay" $trainer.head.pod) -}}
{{- end -}}

{{/* A worker: (list $ NAME GROUP). */}}
{{- define "turnmill-team.workerTemplate" -}}
{{- $root := index . 0 -}}
{{- $group := index . 2 -}}
{{- $trainer := $root.Values.trainer -}}
{{- $products := ternary $group.gpuProducts (list) (eq $group.device "cuda") -}}
{{- include "turnmill-team.rayTemplate" (dict
  "root" $root "component" "ray-worker" "group" (index . 1) "device" $group.device "autoscaler" false
  "priority" (ternary $trainer.priorityClassName $trainer.rolloutPriorityClassName (eq $group.purpose "train"))
  "image" ($group.image | default (include "turnmill-team.image" (list $root $trainer.image "own")))
  "resources" (include "turnmill-team.groupResources" $group) "sharedMemory" $group.sharedMemory
  "nodeSelector" $group.nodeSelector "tolerations" (ternary $group.tolerations (list) (eq $group.device "cuda"))
  "gpuProducts" $products "overlay" $group.pod "closeTogether" $group.closeTogether) -}}
{{- end -}}

{{/* Names of the worker groups, the default one first. */}}
{{- define "turnmill-team.groupNames" -}}
{{- $groups := dict -}}
{{- range $name, $group := .Values.trainer.groups -}}
{{- if $group -}}{{- $_ := set $groups $name $group -}}{{- end -}}
{{- end -}}
{{- $first := .Values.trainer.defaultGroup -}}
{{- if not (hasKey $groups $first) -}}
{{- fail (printf "trainer.defaultGroup (%s) is none of trainer.groups (%s): name one of them." $first (keys $groups | sortAlpha | join ", ")) -}}
{{- end -}}
{{ concat (list $first) (without (keys $groups | sortAlpha) $first) | join "," }}
{{- end -}}

{{/* The name of a claim: (list $ "runs"). */}}
{{- define "turnmill-team.claim" -}}
{{- $root := index . 0 -}}
{{- $claim := index $root.Values.storage (index . 1) -}}
{{- $claim.existingClaim | default (printf "%s-%s" (include "turnmill-team.fullname" $root) (index . 1)) -}}
{{- end -}}
