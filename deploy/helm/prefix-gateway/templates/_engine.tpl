{{/* Name of a pool's objects. (dict "root" $ "pool" "engine") */}}
{{- define "pg.engineName" -}}
{{- printf "%s-%s" (include "pg.fullname" .root) .pool | trunc 60 | trimSuffix "-" -}}
{{- end -}}

{{/* Whether a flag is among an engine's args, as `--flag`, `--flag=…` or `--flag …`: "true" or "". */}}
{{- define "pg.hasFlag" -}}
{{- range .args -}}
{{- $name := regexFind "^[^= ]+" (toString .) -}}
{{- if has $name $.flags -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pg.engineImage" -}}
{{- $e := .engine -}}
{{- if or $e.image.repository (ne $e.type "reference") -}}
{{- $repository := dict "vllm" "vllm/vllm-openai" "sglang" "lmsysorg/sglang" "reference" .root.Values.image.repository -}}
{{- $tag := dict "vllm" "v0.32.0" "sglang" "v0.5.23" "reference" (default .root.Chart.AppVersion .root.Values.image.tag) -}}
{{- printf "%s:%s" (default (get $repository $e.type) $e.image.repository) (default (get $tag $e.type) $e.image.tag) -}}
{{- else -}}
{{- include "pg.image" .root -}}
{{- end -}}
{{- end -}}

{{/* Command of an engine's container, as a YAML list. */}}
{{- define "pg.engineCommand" -}}
{{- if eq . "vllm" -}}[vllm, serve]
{{- else if eq . "sglang" -}}[python3, -m, sglang.launch_server]
{{- else -}}[python, -m, workers, serve]
{{- end -}}
{{- end -}}

{{/* What the gateway lives on is added to the given args where it is missing. A YAML list. */}}
{{- define "pg.engineArgs" -}}
{{- $e := .engine -}}
{{- $events := dict "publisher" "zmq" "topic" "kv-events" "endpoint" "tcp://*:5557" "replay_endpoint" "tcp://*:5558" -}}
{{- $args := list -}}
{{- $must := list -}}
{{- if eq $e.type "vllm" -}}
{{- $args = list $e.model "--host=0.0.0.0" "--port=8000" -}}
{{- $must = list
      (dict "flags" (list "--enable-prefix-caching") "add" "--enable-prefix-caching")
      (dict "flags" (list "--enable-prompt-tokens-details") "add" "--enable-prompt-tokens-details")
      (dict "flags" (list "--kv-events-config") "add" (printf "--kv-events-config=%s" (toJson (merge (dict "enable_kv_cache_events" true) $events)))) -}}
{{- if $e.servedModelName -}}
{{- $must = append $must (dict "flags" (list "--served-model-name") "add" (printf "--served-model-name=%s" $e.servedModelName)) -}}
{{- end -}}
{{- else if eq $e.type "sglang" -}}
{{- $args = list (printf "--model-path=%s" $e.model) "--host=0.0.0.0" "--port=8000" -}}
{{- $must = list
      (dict "flags" (list "--enable-metrics") "add" "--enable-metrics")
      (dict "flags" (list "--enable-cache-report") "add" "--enable-cache-report")
      (dict "flags" (list "--page-size") "add" "--page-size=16")
      (dict "flags" (list "--kv-events-config") "add" (printf "--kv-events-config=%s" (toJson $events))) -}}
{{- if $e.servedModelName -}}
{{- $must = append $must (dict "flags" (list "--served-model-name") "add" (printf "--served-model-name=%s" $e.servedModelName)) -}}
{{- end -}}
{{- else -}}
{{- $args = list (printf "--model=%s" $e.model) "--host=0.0.0.0" "--port=8000" "--kv-events-port=5557" "--kv-replay-port=5558" -}}
{{- if $e.servedModelName -}}
{{- $must = list (dict "flags" (list "--served-model-name") "add" (printf "--served-model-name=%s" $e.servedModelName)) -}}
{{- end -}}
{{- end -}}
{{- range $e.args -}}{{- $args = append $args (toString .) -}}{{- end -}}
{{- range $must -}}
{{- if not (include "pg.hasFlag" (dict "args" $e.args "flags" .flags)) -}}{{- $args = append $args .add -}}{{- end -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{- define "pg.engineResources" -}}
{{- if .resources -}}
{{- toYaml .resources -}}
{{- else if eq .type "reference" -}}
requests: {cpu: 500m, memory: 512Mi}
limits: {memory: 1Gi}
{{- else -}}
limits: {nvidia.com/gpu: 1}
{{- end -}}
{{- end -}}
