{{/* Flags of engines that would undo what the chart makes around them, and what to set instead. A JSON object. */}}
{{- define "pg.flagsOfChart" -}}
{{- $address := "the chart's engines listen on port 8000 of their pods, where probes, discovery and network policies look" -}}
{{- $ranks := "say it as dataParallelSize, which ports, annotation and network policy follow" -}}
{{- if eq . "sglang" -}}{{- $ranks = "the gateway follows one SGLang rank a pod: take more replicas in place of ranks" -}}{{- end -}}
{{- $cache := "without its prefix cache there is nothing to route to" -}}
{{- $tls := "discovery, probes and monitors reach the chart's engines over plain HTTP, which networkPolicy keeps to them" -}}
{{- $events := "the chart's engines publish on port 5557 and behind it, where discovery and network policies look" -}}
{{- dict "--host" $address "--port" $address "--uds" $address
      "--model" "say it as model" "--model-path" "say it as model"
      "--api-key" "say it as apiKey.existingSecret, which the gateway and agents follow"
      "--no-enable-prefix-caching" $cache "--disable-radix-cache" $cache "--no-prefix-caching" $cache
      "--no-enable-prompt-tokens-details" "promises are checked by what engines report as cached"
      "--headless" "such an engine has no API server that could answer"
      "--grpc" "the gateway speaks HTTP" "--grpc-mode" "the gateway speaks HTTP"
      "--skip-tokenizer-init" "such an engine takes no text, and gives none"
      "--config" "what stands in a file would be neither checked nor followed: give its flags here"
      "--ssl-keyfile" $tls "--ssl-certfile" $tls
      "--kv-events-port" $events "--kv-replay-port" $events
      "--data-parallel-size" $ranks "-dp" $ranks "--dp-size" $ranks "--dp" $ranks
      "--data-parallel-size-local" $ranks "-dpl" $ranks "--data-parallel-rank" $ranks "-dpn" $ranks
      "--data-parallel-start-rank" $ranks "-dpr" $ranks
      "--data-parallel-hybrid-lb" $ranks "--data-parallel-external-lb" $ranks | toJson -}}
{{- end -}}

{{/* Of every pool: flags and variables that undo the chart, ranks that nobody would find, a rollout that never ends. */}}
{{- define "pg.checkEngines" -}}
{{- $annotations := list "block-size" "capacity" "events-port" "ignore" "max-requests" "model" "port" "replay-port" "scheme" "topic" "weight" -}}
{{- range $pool, $e := include "pg.pools" . | fromJson -}}
{{- $where := ternary "engine" (printf "extraEngines.%s" $pool) (eq $pool "engine") -}}
{{- $ours := include "pg.flagsOfChart" $e.type | fromJson -}}
{{- $switches := list "--enable-prefix-caching" "--enable-prompt-tokens-details" "--enable-metrics" "--enable-cache-report" -}}
{{- range $at, $arg := $e.args -}}
{{- $text := include "pg.text" $arg -}}
{{- $flag := regexFind "^-[^= ]+" $text -}}
{{- if hasPrefix "--" $flag -}}{{- $flag = replace "_" "-" $flag -}}{{- end -}}
{{- with get $ours $flag -}}{{- fail (printf "%s.args: %s: %s" $where $flag .) -}}{{- end -}}
{{- $behind := include "pg.text" (index (append $e.args "-") (add1 $at)) -}}
{{- if and (has $flag $switches) (or (regexMatch "[= ]" $text) (not (hasPrefix "-" $behind))) -}}
{{- fail (printf "%s.args: %s: a switch that takes no value, and stays on" $where $flag) -}}
{{- end -}}
{{- if hasPrefix "--kv-events-config." $flag -}}
{{- fail (printf "%s.args: %s: say it in one JSON object, --kv-events-config={…}" $where $flag) -}}
{{- end -}}
{{- end -}}
{{- include "pg.checkEvents" (dict "engine" $e "where" $where) -}}
{{- range $name, $value := $e.podAnnotations -}}
{{- if and (hasPrefix "prefix-gateway.io/" $name) (not (has (trimPrefix "prefix-gateway.io/" $name) $annotations)) -}}
{{- fail (printf "%s.podAnnotations: %s is none that the gateway reads: %s" $where $name (join ", " $annotations)) -}}
{{- end -}}
{{- if hasPrefix "prefix-gateway.io/" $name -}}
{{- $said := dict "where" (printf "%s.podAnnotations: %s=%s" $where $name $value) "name" (trimPrefix "prefix-gateway.io/" $name) -}}
{{- include "pg.checkWorker" (set $said "value" $value) -}}
{{- end -}}
{{- end -}}
{{- range $e.env -}}
{{- if and (eq .name "VLLM_API_KEY") (not $e.apiKey.existingSecret) -}}
{{- fail (printf "%s.env: VLLM_API_KEY: say it as apiKey.existingSecret, which the gateway and agents follow" $where) -}}
{{- end -}}
{{- end -}}
{{- if gt (int $e.dataParallelSize) 1 -}}
{{- if ne $e.type "vllm" -}}
{{- fail (printf "%s.dataParallelSize: of vLLM alone; take more replicas of %s" $where $e.type) -}}
{{- end -}}
{{- $d := $.Values.discovery -}}
{{- if or (eq $d.type "dns") (and (eq $d.type "kubernetes") (eq $d.resource "endpointslices")) -}}
{{- fail (printf "%s.dataParallelSize: ranks are told by pods' annotations, which neither EndpointSlices nor DNS have: discovery.resource pods, or discovery.type redis" $where) -}}
{{- end -}}
{{- end -}}
{{- $r := $e.strategy.rollingUpdate | default dict -}}
{{- if and (eq $e.strategy.type "RollingUpdate") (regexMatch "^0%?$" (include "pg.text" (dig "maxSurge" "25%" $r))) (regexMatch "^0%?$" (include "pg.text" (dig "maxUnavailable" "25%" $r))) -}}
{{- fail (printf "%s.strategy: maxSurge and maxUnavailable are both 0: no pod could ever be replaced" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An engine's own --kv-events-config may say more (buffers, for example), but not where. (dict "engine" … "where" …) */}}
{{- define "pg.checkEvents" -}}
{{- $e := .engine -}}
{{- if include "pg.hasFlag" (dict "args" $e.args "flags" (list "--kv-events-config")) -}}
{{- $given := include "pg.flagValue" (dict "args" $e.args "flag" "--kv-events-config") | fromJson -}}
{{- $replay := include "pg.replayPort" $e -}}
{{- $off := and (eq $e.type "vllm") (not (dig "enable_kv_cache_events" false $given)) -}}
{{- if or $off (ne (dig "publisher" "" $given) "zmq")
      (not (regexMatch "^tcp://.+:5557$" (dig "endpoint" "" $given)))
      (not (regexMatch (printf "^tcp://.+:%s$" $replay) (dig "replay_endpoint" "" $given))) -}}
{{- fail (printf "%s.args: --kv-events-config: leave it out, or make it a JSON object that has events on, publisher zmq, endpoint tcp://*:5557 and replay_endpoint tcp://*:%s, where discovery and network policies look" .where $replay) -}}
{{- end -}}
{{- end -}}
{{- end -}}
