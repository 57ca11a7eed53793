{{- define "pg.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* A value as text. Numbers of a file are floats, which print as 1.048576e+06 from a million on. */}}
{{- define "pg.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{- printf "%.0f" . -}}{{- else -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{- define "pg.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "pg.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "pg.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "pg.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: prefix-gateway
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What selectors use: never changes in the life of a release. (dict "root" $ "component" "gateway") */}}
{{- define "pg.selector" -}}
app.kubernetes.io/name: {{ include "pg.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "pg.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pg.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pg.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Pools by name: `engine` is the first, each of `extraEngines` is laid over it. A JSON object. What one kind of engine
is started with is nothing for another, and one model's name none for another's; GPUs of two makers are not added up. */}}
{{- define "pg.pools" -}}
{{- $pools := dict -}}
{{- if ne .Values.engine.type "none" -}}
{{- $_ := set $pools "engine" .Values.engine -}}
{{- end -}}
{{- range $name, $own := .Values.extraEngines -}}
{{- $base := deepCopy $.Values.engine -}}
{{- $own := deepCopy ($own | default dict) -}}
{{- $whole := list "resources" "nodeSelector" "affinity" "podDisruptionBudget" -}}
{{- range $part := $whole -}}
{{- if hasKey $own $part -}}{{- $_ := unset $base $part -}}{{- end -}}
{{- end -}}
{{- if and $own.model (ne $own.model $base.model) -}}{{- $_ := set $base "servedModelName" "" -}}{{- end -}}
{{- if and $own.type (ne $own.type $base.type) (ne $base.type "none") -}}
{{- $image := dict "repository" "" "tag" "" "pullPolicy" $base.image.pullPolicy -}}
{{- $_ := set $base "image" $image -}}
{{- range $part, $none := dict "args" (list) "env" (list) "resources" (dict) "nodeSelector" (dict) "runtimeClassName" "" "dataParallelSize" 1 -}}
{{- $_ := set $base $part $none -}}
{{- end -}}
{{- end -}}
{{- $merged := mergeOverwrite $base $own -}}
{{- if eq (toString $own.type) "none" -}}
{{- fail (printf "extraEngines.%s: a pool of type none runs nothing; leave it out, or set it to null" $name) -}}
{{- end -}}
{{- if eq $merged.type "none" -}}
{{- fail (printf "extraEngines.%s: give it a type, since engine.type is none" $name) -}}
{{- end -}}
{{- $_ := set $pools $name $merged -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{- define "pg.discoverySelector" -}}
{{- default (printf "prefix-gateway.io/fleet=%s" (include "pg.fullname" .)) .Values.discovery.selector -}}
{{- end -}}

{{- define "pg.adminSecret" -}}
{{- default (printf "%s-admin" (include "pg.fullname" .)) .Values.admin.existingSecret -}}
{{- end -}}

{{- define "pg.keysSecret" -}}
{{- if .Values.apiKeys.existingSecret -}}{{ .Values.apiKeys.existingSecret }}
{{- else if .Values.apiKeys.keys -}}{{ include "pg.fullname" . }}-api-keys
{{- end -}}
{{- end -}}

{{- define "pg.redisSecret" -}}
{{- if eq .Values.redis.mode "internal" -}}
{{- default (printf "%s-redis" (include "pg.fullname" .)) .Values.redis.internal.existingSecret -}}
{{- else -}}
{{- .Values.redis.external.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* A secret that is made once and kept from then on. (dict "root" $ "name" … "key" …) */}}
{{- define "pg.keptSecret" -}}
{{- $known := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- if and $known (hasKey ($known.data | default dict) .key) -}}
{{- index $known.data .key -}}
{{- else -}}
{{- randAlphaNum 43 | b64enc -}}
{{- end -}}
{{- end -}}

{{/* Resources of a pod: those of one process, times the processes. A quantity is a number and a suffix. */}}
{{- define "pg.resources" -}}
{{- $times := float64 .processes -}}
{{- $out := deepCopy (default dict .resources) -}}
{{- if gt $times 1.0 -}}
{{- range $kind := list "requests" "limits" -}}
{{- range $name, $quantity := default dict (get $out $kind) -}}
{{- $text := include "pg.text" $quantity -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $_ := set (get $out $kind) $name (printf "%.15g%s" (mulf (float64 $number) $times) (trimPrefix $number $text)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* What would be wrong on a cluster and can be told before: one message each. */}}
{{- define "pg.check" -}}
{{- if and .Values.gateway.autoscaling.enabled (eq .Values.redis.mode "none") -}}
{{- fail "gateway.autoscaling needs Redis: what one replica knows the others must too. Set redis.mode, or gateway.autoscaling.enabled to false and gateway.replicas to 1" -}}
{{- end -}}
{{- if and (gt (int .Values.gateway.replicas) 1) (eq .Values.redis.mode "none") -}}
{{- fail "gateway.replicas > 1 needs Redis: what one replica knows the others must too. Set redis.mode, or gateway.replicas to 1" -}}
{{- end -}}
{{- if and (gt (int .Values.gateway.processes) 1) (eq .Values.redis.mode "none") -}}
{{- fail "gateway.processes > 1 needs Redis: there processes share what the fleet holds, their load and the keys' limits. Set redis.mode, or gateway.processes to 1" -}}
{{- end -}}
{{- include "pg.checkSettings" . -}}
{{- include "pg.checkGateway" . -}}
{{- include "pg.checkLabels" . -}}
{{- include "pg.checkTexts" . -}}
{{- include "pg.checkRedis" .Values.redis -}}
{{- if and (eq .Values.discovery.type "redis") (eq .Values.redis.mode "none") -}}
{{- fail "discovery.type redis needs redis.mode internal or external" -}}
{{- end -}}
{{- if and (eq .Values.discovery.type "dns") (not .Values.discovery.dnsNames) -}}
{{- fail "discovery.type dns: set discovery.dnsNames" -}}
{{- end -}}
{{- if and (eq .Values.discovery.type "static") (not .Values.workers) (not (dig "workers_file" "" (default dict .Values.gateway.config))) -}}
{{- fail "discovery.type static: set workers" -}}
{{- end -}}
{{- range $pool, $e := include "pg.pools" . | fromJson -}}
{{- $key := $.Values.engine.apiKey -}}
{{- if and $e.apiKey.existingSecret (ne (toJson $e.apiKey) (toJson $key)) -}}
{{- fail (printf "extraEngines.%s.apiKey: the gateway shows all engines one key, that of engine.apiKey: say it there" $pool) -}}
{{- end -}}
{{- if and (eq $e.type "reference") (regexMatch "^[A-Za-z0-9][^/]*/" $e.model) -}}
{{- fail (printf "%s: the reference worker has the models smollm2 and tiny, takes sim:<profile>, or a path; not %s" $pool $e.model) -}}
{{- end -}}
{{- end -}}
{{- include "pg.checkEngines" . -}}
{{- include "pg.checkResources" . -}}
{{- include "pg.checkScaling" . -}}
{{- include "pg.checkDoors" . -}}
{{- include "pg.checkRoutes" . -}}
{{- end -}}

{{/* Where Redis is, as environment variables of gateways and agents. A password is never put into the URL, where
some characters would have to be encoded. */}}
{{- define "pg.redisEnv" -}}
{{- $r := .Values.redis -}}
{{- if ne $r.mode "none" -}}
{{- $key := ternary $r.internal.key $r.external.key (eq $r.mode "internal") -}}
{{- with include "pg.redisSecret" . -}}
- name: GATEWAY_REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $key }}}
{{ end -}}
- name: GATEWAY_REDIS_URL
{{- if eq $r.mode "internal" }}
  value: redis://{{ include "pg.fullname" . }}-redis:6379/0
{{- else if $r.external.urlSecret }}
  valueFrom:
    secretKeyRef: {name: {{ $r.external.urlSecret }}, key: url}
{{- else }}
  value: {{ $r.external.url | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* What is wrong with redis.external, or nothing. */}}
{{- define "pg.checkRedis" -}}
{{- $e := .external -}}
{{- if ne .mode "external" -}}
{{- if or $e.url $e.urlSecret -}}
{{- fail (printf "redis.external says where Redis is, and redis.mode is %s: set it to external" .mode) -}}
{{- end -}}
{{- else if and $e.url $e.urlSecret -}}
{{- fail "redis.external.url and redis.external.urlSecret: give one of them" -}}
{{- else if not (or $e.url $e.urlSecret) -}}
{{- fail "redis.mode is external: set redis.external.url or redis.external.urlSecret" -}}
{{- else if $e.url -}}
{{- /* its text is never repeated: helm's message ends up in logs */}}
{{- if or (contains "$(" $e.url) (regexMatch "^[a-z+]+://[^/?]*:[^/?]*@" $e.url) (contains "password=" $e.url) -}}
{{- fail "redis.external.url: leave the password out of it, since a pod's description shows it to many; redis.external.existingSecret has it, or urlSecret the whole URL" -}}
{{- end -}}
{{- if regexMatch "^rediss?://[^/?]+/[^?]*[^0-9?]" $e.url -}}
{{- fail "redis.external.url: behind the host stands a database's number" -}}
{{- end -}}
{{- if regexMatch "^rediss?\\+cluster://[^/?]+/[^?]" $e.url -}}
{{- fail "redis.external.url: a cluster has no numbered databases" -}}
{{- end -}}
{{- if regexMatch "^rediss?\\+sentinel://[^/?]+/?(\\?|$)" $e.url -}}
{{- fail "redis.external.url: Sentinel needs the master's name: redis+sentinel://host:26379/NAME" -}}
{{- end -}}
{{- $files := contains "=/etc/prefix-gateway/redis-tls/" $e.url -}}
{{- if and $e.tlsSecret (not (and $files (hasPrefix "rediss" $e.url))) -}}
{{- fail "redis.external.tlsSecret: its files are named in the URL: rediss://…?ca=/etc/prefix-gateway/redis-tls/ca.crt" -}}
{{- end -}}
{{- if and $files (not $e.tlsSecret) -}}
{{- fail "redis.external.url names files under /etc/prefix-gateway/redis-tls: set redis.external.tlsSecret" -}}
{{- end -}}
{{- end -}}
{{- end -}}
