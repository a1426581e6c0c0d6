{{/* The two files that the agent reads, as deploy/overlays/plain has them, with the values in place of its examples. */}}

{{- define "bpfsvc.config" -}}
{{- $config := .Values.config }}
{{- $shipped := (include "bpfsvc.file" (list . "overlays/plain/config.yaml") | fromYaml).data }}
{{- $documents := regexSplit "(?m)^---$" (index $shipped "config.conf") -1 }}
{{- $kubeProxy := omit (index $documents 0 | fromYaml) "clusterCIDR" }}
{{- $kubeconfig := index $shipped "kubeconfig.conf" | fromYaml }}
{{- $_ := set (first $kubeconfig.clusters).cluster "server" $config.server }}
config.conf: |
  {{- toYaml (mergeOverwrite $kubeProxy $config.kubeProxy) | nindent 2 }}
  ---
  {{- toYaml (mergeOverwrite (index $documents 1 | fromYaml) $config.bpfsvc) | nindent 2 }}
kubeconfig.conf: |
  {{- toYaml $kubeconfig | nindent 2 }}
{{- end }}

{{/* Return the name of the ConfigMap: one that is there, or the chart's own, with a hash if settings are rolled out. */}}
{{- define "bpfsvc.configName" -}}
{{- $config := .Values.config }}
{{- if $config.configMap }}
  {{- $config.configMap }}
{{- else if $config.rolling }}
  {{- printf "bpfsvc-%s" (include "bpfsvc.config" . | sha256sum | trunc 10) }}
{{- else -}}
  bpfsvc
{{- end }}
{{- end }}

{{/* Refuse values that do not go together; the schema refuses what is wrong by itself. */}}
{{- define "bpfsvc.check" -}}
{{- $config := .Values.config }}
{{- $monitored := or .Values.monitoring.podMonitor .Values.monitoring.serviceMonitor }}
{{- if $config.configMap }}
  {{- if or $config.kubeProxy $config.bpfsvc $config.server }}
    {{- fail (printf "config.configMap: the settings are those of the ConfigMap %s; leave out config.server, config.kubeProxy and config.bpfsvc, and use flags" $config.configMap) }}
  {{- end }}
{{- else if not $config.server }}
  {{- fail "config.server: needs an address of the API server that nodes reach without a Service, such as https://control-plane.example:6443 (or config.configMap=kube-proxy)" }}
{{- else if and $monitored (not $config.kubeProxy.metricsBindAddress) }}
  {{- fail "monitoring: Prometheus reaches no metrics at 127.0.0.1; set config.kubeProxy.metricsBindAddress, such as 0.0.0.0:10249" }}
{{- end }}
{{- if and .Values.monitoring.podMonitor .Values.monitoring.serviceMonitor }}
  {{- fail "monitoring.serviceMonitor: with monitoring.podMonitor, too, each agent would be scraped twice; choose one" }}
{{- end }}
{{- if and $monitored (eq .Values.mode "shadow") }}
  {{- fail "monitoring: shadow mode has no port for metrics (docs/shadow.md); set it with mode=agent" }}
{{- end }}
{{- end }}

{{/* Return "yes" if there are agents: in mode removal only on the nodes that the label leaves to them. */}}
{{- define "bpfsvc.hasAgents" -}}
{{- if or (ne .Values.mode "removal") .Values.components.canary }}yes{{ end }}
{{- end }}
