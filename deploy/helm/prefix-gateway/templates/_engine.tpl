{{/* Name of a pool's objects. (dict "root" $ "pool" "engine") */}}
{{- define "pg.engineName" -}}
{{- printf "%s-%s" (include "pg.fullname" .root) .pool | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name under which an engine's requests are counted: what it answers to. vLLM and SGLang take several, the first is
the model's. */}}
{{- define "pg.servedName" -}}
{{- $given := include "pg.flagValue" (dict "args" .args "flag" "--served-model-name") -}}
{{- default (default .model .servedModelName) (regexFind "^[^ ]+" $given) -}}
{{- end -}}

{{/* What an engine's args say behind a flag, as `--flag value` or `--flag=value`; the last one counts. */}}
{{- define "pg.flagValue" -}}
{{- $given := "" -}}
{{- $next := false -}}
{{- range .args -}}
{{- $arg := include "pg.text" . -}}
{{- if $next -}}{{- $given = $arg -}}{{- $next = false -}}{{- end -}}
{{- if eq (regexFind "^[^= ]+" $arg | replace "_" "-") $.flag -}}
{{- $given = regexReplaceAll "^[^= ]+[= ]*" $arg "" -}}
{{- $next = eq $given "" -}}
{{- end -}}
{{- end -}}
{{- $given -}}
{{- end -}}

{{/* Whether a flag is among an engine's args, as `--flag`, `--flag=…` or `--flag …`: "true" or "". */}}
{{- define "pg.hasFlag" -}}
{{- range .args -}}
{{- $name := regexFind "^[^= ]+" (toString .) -}}
{{- if hasPrefix "--" $name -}}{{- $name = replace "_" "-" $name -}}{{- end -}}
{{- if has $name $.flags -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* What would scale engines wrongly. */}}
{{- define "pg.checkScaling" -}}
{{- $pools := include "pg.pools" . | fromJson -}}
{{- range $pool, $e := $pools -}}
{{- $served := include "pg.servedName" $e -}}
{{- if and $e.servedModelName (ne $served $e.servedModelName) -}}
{{- fail (printf "%s: servedModelName says %s, --served-model-name in args %s: give one of them" $pool $e.servedModelName $served) -}}
{{- end -}}
{{- if $e.autoscaling.enabled -}}
{{- if and (eq $e.autoscaling.type "hpa") (not (regexMatch "^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$" $served)) -}}
{{- fail (printf "%s.autoscaling: an HPA selects by labels, and %s can't be one: set servedModelName, or autoscaling.type keda" $pool $served) -}}
{{- end -}}
{{- range $other, $o := $pools -}}
{{- if and (ne $other $pool) (eq $served (include "pg.servedName" $o)) -}}
{{- fail (printf "%s.autoscaling: pool %s serves %s as well, and requests are counted by model: each pool would be made large enough for all of them. Scale one pool alone, or none" $pool $other $served) -}}
{{- end -}}
{{- end -}}
{{- end -}}
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

{{/* First port of the replays. Each rank adds its number to both ports, so they begin where the events' ports end. */}}
{{- define "pg.replayPort" -}}
{{- add 5557 (int .dataParallelSize) -}}
{{- end -}}

{{/* Ports of an engine's container by name, as discovery finds them; those of further ranks are counted up from these. */}}
{{- define "pg.enginePorts" -}}
- {name: http, containerPort: 8000}
- {name: kv-events, containerPort: 5557}
- {name: kv-replay, containerPort: {{ include "pg.replayPort" . }}}
{{- $replay := int (include "pg.replayPort" .) -}}
{{- range $rank := untilStep 1 (int .dataParallelSize) 1 }}
- {name: kv-events-{{ $rank }}, containerPort: {{ add 5557 $rank }}}
- {name: kv-replay-{{ $rank }}, containerPort: {{ add $replay $rank }}}
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
{{- $events := dict "publisher" "zmq" "topic" "kv-events" "endpoint" "tcp://*:5557" "replay_endpoint" (printf "tcp://*:%s" (include "pg.replayPort" $e)) -}}
{{- $args := list -}}
{{- $must := list -}}
{{- if eq $e.type "vllm" -}}
{{- $args = list $e.model "--host=0.0.0.0" "--port=8000" -}}
{{- $must = list
      (dict "flags" (list "--enable-prefix-caching") "add" "--enable-prefix-caching")
      (dict "flags" (list "--enable-prompt-tokens-details") "add" "--enable-prompt-tokens-details")
      (dict "flags" (list "--kv-events-config") "add" (printf "--kv-events-config=%s" (toJson (merge (dict "enable_kv_cache_events" true) $events)))) -}}
{{- if gt (int $e.dataParallelSize) 1 -}}
{{- $must = append $must (dict "flags" (list) "add" (printf "--data-parallel-size=%d" (int $e.dataParallelSize))) -}}
{{- end -}}
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
{{- if $e.apiKey.existingSecret -}}
{{- $must = append $must (dict "flags" (list) "add" "--api-key=$(ENGINE_API_KEY)") -}}
{{- end -}}
{{- if $e.servedModelName -}}
{{- $must = append $must (dict "flags" (list "--served-model-name") "add" (printf "--served-model-name=%s" $e.servedModelName)) -}}
{{- end -}}
{{- else -}}
{{- $args = list (printf "--model=%s" $e.model) "--host=0.0.0.0" "--port=8000" "--kv-events-port=5557" "--kv-replay-port=5558" -}}
{{- if $e.servedModelName -}}
{{- $must = list (dict "flags" (list "--served-model-name") "add" (printf "--served-model-name=%s" $e.servedModelName)) -}}
{{- end -}}
{{- end -}}
{{- range $e.args -}}{{- $args = append $args (include "pg.text" .) -}}{{- end -}}
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
limits: {nvidia.com/gpu: {{ int .dataParallelSize }}}
{{- end -}}
{{- end -}}

{{/* Variables of an engine's container. HF_HOME and PYTHONUNBUFFERED may be others' as well. */}}
{{- define "pg.engineEnv" -}}
{{- $e := .engine -}}
{{- $given := dict -}}
{{- range $e.env -}}{{- $_ := set $given .name true -}}{{- end -}}
{{- $own := list -}}
{{- if and (ne $e.type "reference") (not (hasKey $given "HF_HOME")) -}}
{{- $own = append $own (dict "name" "HF_HOME" "value" "/models") -}}
{{- end -}}
{{- with $e.huggingFace.existingSecret -}}
{{- $own = append $own (dict "name" "HF_TOKEN" "valueFrom" (dict "secretKeyRef" (dict "name" . "key" $e.huggingFace.key))) -}}
{{- end -}}
{{- if and $e.apiKey.existingSecret (ne $e.type "reference") -}}
{{- $secret := dict "name" $e.apiKey.existingSecret "key" $e.apiKey.key -}}
{{- $own = append $own (dict "name" (ternary "VLLM_API_KEY" "ENGINE_API_KEY" (eq $e.type "vllm")) "valueFrom" (dict "secretKeyRef" $secret)) -}}
{{- end -}}
{{- if not (hasKey $given "PYTHONUNBUFFERED") -}}
{{- $own = append $own (dict "name" "PYTHONUNBUFFERED" "value" "1") -}}
{{- end -}}
{{- include "pg.env" (dict "own" (toYaml $own) "more" $e.env "where" (printf "%s.env" .where)) -}}
{{- end -}}
