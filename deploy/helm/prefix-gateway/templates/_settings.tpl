{{/* Settings that this chart makes itself, and other objects with them: where each is said instead. */}}
{{- define "pg.settingsOfChart" -}}
{{- $address := "a pod's own addresses are fixed (8080, and 8081 for admin); gateway.service.port is what clients use" -}}
host: {{ $address }}
port: {{ $address }}
admin_host: {{ $address }}
admin_port: {{ $address }}
processes: say it as gateway.processes, so that a pod asks for resources to match
settle: say it as gateway.settleSeconds, so that the pod's grace period is made to fit
shutdown_grace: say it as gateway.drainSeconds, so that the pod's grace period is made to fit
discovery: say it as discovery.type, which the role and the service account's token follow
discovery_port: say it as discovery.port
discovery_events_port: say it as discovery.eventsPort
discovery_replay_port: say it as discovery.replayPort
kubernetes_selector: say it as discovery.selector
kubernetes_resource: say it as discovery.resource, which the role follows
kubernetes_namespace: say it as discovery.namespace, which the role follows
kubeconfig: pods ask the API server as their service account (serviceAccount, rbac)
dns_names: say it as discovery.dnsNames
workers: say it as workers
tokenizers: say it as gateway.tokenizers
aliases: say it as gateway.aliases
redis_url: say it as redis.mode and redis.external, which agents and network policies follow
redis_password: a Secret has it, redis.external.existingSecret or redis.internal.existingSecret
redis_prefix: say it as redis.prefix, which agents follow
api_keys: say it as apiKeys.keys
api_keys_file: say it as apiKeys.existingSecret, which is mounted
admin_token: a Secret has it, admin.existingSecret
admin_token_file: a Secret has it, admin.existingSecret, which is mounted
open_metrics: say it as admin.openMetrics, which the ServiceMonitor follows
tls_cert: say it as tls.existingSecret, which is mounted and which Ingress and HTTPRoute follow
tls_key: say it as tls.existingSecret, which is mounted and which Ingress and HTTPRoute follow
tls_client_ca: say it as tls.requireClientCertificate, with ca.crt in tls.existingSecret
admin_tls_cert: say it as tls.adminSecret, which is mounted and which probes and the ServiceMonitor follow
admin_tls_key: say it as tls.adminSecret, which is mounted and which probes and the ServiceMonitor follow
admin_tls_client_ca: the kubelet's probes show no certificate
worker_api_key_file: say it as engine.apiKey, which engines and agents follow
{{- end -}}

{{/* The same settings, in `gateway.config` or as variables: nothing stands there that contradicts the chart's objects. */}}
{{- define "pg.checkSettings" -}}
{{- $ours := include "pg.settingsOfChart" . | fromYaml -}}
{{- range $name, $_ := default dict .Values.gateway.config -}}
{{- with get $ours $name -}}{{- fail (printf "gateway.config.%s: %s" $name .) -}}{{- end -}}
{{- end -}}
{{- range .Values.gateway.env -}}
{{- $name := lower .name -}}
{{- if hasPrefix "gateway_" $name -}}
{{- with get $ours (trimPrefix "gateway_" $name) -}}{{- fail (printf "gateway.env: %s: %s" (upper $name) .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The gateway's settings: those that follow from values, and `gateway.config`, which has none of them. */}}
{{- define "pg.config" -}}
{{- $v := .Values -}}
{{- $c := dict "host" "0.0.0.0" "port" 8080 "admin_host" "0.0.0.0" "admin_port" 8081 -}}
{{- $_ := set $c "admin_token_file" "/etc/prefix-gateway/admin/token" -}}
{{- $_ := set $c "open_metrics" $v.admin.openMetrics -}}
{{- $_ := set $c "settle" $v.gateway.settleSeconds -}}
{{- $_ := set $c "shutdown_grace" $v.gateway.drainSeconds -}}
{{- $_ := set $c "discovery" $v.discovery.type -}}
{{- if eq $v.discovery.type "kubernetes" -}}
{{- $_ := set $c "kubernetes_selector" (include "pg.discoverySelector" .) -}}
{{- $_ := set $c "kubernetes_resource" $v.discovery.resource -}}
{{- $_ := set $c "kubernetes_namespace" (default .Release.Namespace $v.discovery.namespace) -}}
{{- else if eq $v.discovery.type "dns" -}}
{{- $_ := set $c "dns_names" $v.discovery.dnsNames -}}
{{- end -}}
{{- if gt (int $v.gateway.processes) 1 -}}
{{- $_ := set $c "processes" $v.gateway.processes -}}
{{- end -}}
{{- with $v.discovery.port }}{{- $_ := set $c "discovery_port" . -}}{{- end -}}
{{- with $v.discovery.eventsPort }}{{- $_ := set $c "discovery_events_port" . -}}{{- end -}}
{{- with $v.discovery.replayPort }}{{- $_ := set $c "discovery_replay_port" . -}}{{- end -}}
{{- with $v.workers }}{{- $_ := set $c "workers" . -}}{{- end -}}
{{- with $v.gateway.tokenizers }}{{- $_ := set $c "tokenizers" . -}}{{- end -}}
{{- with $v.gateway.aliases }}{{- $_ := set $c "aliases" . -}}{{- end -}}
{{- if ne $v.redis.mode "none" -}}
{{- $_ := set $c "redis_prefix" (default (include "pg.fullname" .) $v.redis.prefix) -}}
{{- end -}}
{{- if include "pg.keysSecret" . -}}
{{- $_ := set $c "api_keys_file" (printf "/etc/prefix-gateway/keys/%s" (ternary $v.apiKeys.key "keys.yaml" (ne $v.apiKeys.existingSecret ""))) -}}
{{- end -}}
{{- if $v.engine.apiKey.existingSecret -}}
{{- $_ := set $c "worker_api_key_file" "/etc/prefix-gateway/engine-key/api-key" -}}
{{- end -}}
{{- if $v.tls.existingSecret -}}
{{- $_ := set $c "tls_cert" "/etc/prefix-gateway/tls/tls.crt" -}}
{{- $_ := set $c "tls_key" "/etc/prefix-gateway/tls/tls.key" -}}
{{- if $v.tls.requireClientCertificate -}}{{- $_ := set $c "tls_client_ca" "/etc/prefix-gateway/tls/ca.crt" -}}{{- end -}}
{{- end -}}
{{- if $v.tls.adminSecret -}}
{{- $_ := set $c "admin_tls_cert" "/etc/prefix-gateway/admin-tls/tls.crt" -}}
{{- $_ := set $c "admin_tls_key" "/etc/prefix-gateway/admin-tls/tls.key" -}}
{{- end -}}
{{- toYaml (merge $c (deepCopy (default dict $v.gateway.config))) -}}
{{- end -}}
