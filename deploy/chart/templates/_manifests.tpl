{{/* The objects are those of deploy/, which manifests/ links to: what is here reads, merges and prints them. */}}

{{/* Return the text of a file. A checkout without symbolic links, and a copy of this folder alone, lack it. */}}
{{- define "bpfsvc.file" -}}
{{- $path := printf "manifests/%s" (index . 1) }}
{{- $text := (index . 0).Files.Get $path }}
{{- if not $text }}
  {{- fail (printf "%s is missing: the chart is deploy/chart in a checkout, or what helm package makes of it" $path) }}
{{- end }}
{{- $text }}
{{- end }}

{{/* Change a map by a patch, as kubectl's strategic merge does it for pods: null removes a field, and elements of
     lists are merged by what tells them apart. It changes the map itself, and returns nothing. */}}
{{- define "bpfsvc.merge" -}}
{{- $base := index . 0 }}
{{- $keys := dict "containers" "name" "initContainers" "name" "volumes" "name" "env" "name" "volumeMounts" "mountPath" "ports" "containerPort" }}
{{- range $name, $value := index . 1 }}
  {{- $before := get $base $name }}
  {{- if kindIs "invalid" $value }}
    {{- $_ := unset $base $name }}
  {{- else if and (kindIs "map" $value) (kindIs "map" $before) }}
    {{- include "bpfsvc.merge" (list $before $value) }}
  {{- else if and (hasKey $keys $name) (kindIs "slice" $before) }}
    {{- $key := get $keys $name }}
    {{- range $change := $value }}
      {{- $merged := false }}
      {{- range $element := $before }}
        {{- if eq (toString (get $element $key)) (toString (get $change $key)) }}
          {{- include "bpfsvc.merge" (list $element $change) }}
          {{- $merged = true }}
        {{- end }}
      {{- end }}
      {{- if not $merged }}
        {{- $before = append $before $change }}
      {{- end }}
    {{- end }}
    {{- $_ := set $base $name $before }}
  {{- else }}
    {{- $_ := set $base $name $value }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Print an object, in the namespace of the release. */}}
{{- define "bpfsvc.object" -}}
{{- $root := index . 0 }}{{ $object := index . 1 }}
{{- if not (hasPrefix "ClusterRole" $object.kind) }}
  {{- $_ := set $object.metadata "namespace" $root.Release.Namespace }}
{{- end }}
{{- range $object.subjects }}
  {{- $_ := set . "namespace" $root.Release.Namespace }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}

{{/* Print all objects of a file. */}}
{{- define "bpfsvc.objects" -}}
{{- $root := index . 0 }}
{{- range regexSplit "(?m)^---$" (include "bpfsvc.file" .) -1 }}
  {{- include "bpfsvc.object" (list $root (fromYaml .)) }}
{{- end }}
{{- end }}

{{/* Print the DaemonSet of a file, changed by patches: files, then texts. It gets the image of the values. */}}
{{- define "bpfsvc.daemonset" -}}
{{- $root := .root }}
{{- $image := $root.Values.image }}
{{- $object := include "bpfsvc.file" (list $root .file) | fromYaml }}
{{- range .patches }}
  {{- include "bpfsvc.merge" (list $object (include "bpfsvc.file" (list $root .) | fromYaml)) }}
{{- end }}
{{- range .changes }}
  {{- include "bpfsvc.merge" (list $object (fromYaml .)) }}
{{- end }}
{{- $pod := $object.spec.template.spec }}
{{- range concat ($pod.initContainers | default list) $pod.containers }}
  {{- $_ := set . "image" (printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion)) }}
  {{- if $image.pullPolicy }}
    {{- $_ := set . "imagePullPolicy" $image.pullPolicy }}
  {{- end }}
{{- end }}
{{- if $image.pullSecrets }}
  {{- $_ := set $pod "imagePullSecrets" $image.pullSecrets }}
{{- end }}
{{- range $container := concat ($pod.initContainers | default list) $pod.containers }}
  {{- if $.flags }}
    {{- $_ := set $container "args" (concat $container.args $.flags) }}
  {{- end }}
{{- end }}
{{- include "bpfsvc.object" (list $root $object) }}
{{- end }}
