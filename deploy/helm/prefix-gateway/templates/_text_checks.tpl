{{/* Values that have a grammar of their own: a schema could refuse them, but not say why. */}}
{{- define "pg.checkTexts" -}}
{{- $v := .Values -}}
{{- $key := "([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?" -}}
{{- $value := "([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?" -}}
{{- $set := printf " +(in|notin) *\\( *%s( *, *%s)* *\\)" $value $value -}}
{{- $one := printf " *(! *%s|%s( *(=|==|!=) *%s|%s| *[<>] *[0-9]+)?) *" $key $key $value $set -}}
{{- if not (regexMatch (printf "^(%s(,%s)*)?$" $one $one) $v.discovery.selector) -}}
{{- fail (printf "discovery.selector: %q is no label selector, like app=vllm or app in (vllm,sglang),tier!=test" $v.discovery.selector) -}}
{{- end -}}
{{- $fields := list "events" "replay" "topic" "model" "block_size" "capacity" "max_requests" "weight" "dp_rank" -}}
{{- range $line := $v.workers -}}
{{- range rest (splitList "," $line) -}}
{{- if not (has (regexFind "^[^=]+=" . | trimSuffix "=" | trim) $fields) -}}
{{- fail (printf "workers: %q: behind the URL stands name=value, with a name of %s" . (join ", " $fields)) -}}
{{- end -}}
{{- end -}}
{{- $hosts := list -}}
{{- range regexFindAll "://[^/, ]+" $line -1 -}}{{- $hosts = append $hosts (trimPrefix "://" .) -}}{{- end -}}
{{- include "pg.checkHosts" (dict "where" "workers" "hosts" $hosts) -}}
{{- end -}}
{{- include "pg.checkHosts" (dict "where" "discovery.dnsNames" "hosts" $v.discovery.dnsNames) -}}
{{- $redis := regexFind "^[a-z+]+://[^/?]*" $v.redis.external.url -}}
{{- include "pg.checkHosts" (dict "where" "redis.external.url" "hosts" (splitList "," (regexReplaceAll "^.*(//|@)" $redis ""))) -}}
{{- range $who := list "clients" "admins" "monitoring" -}}
{{- range get $v.networkPolicy $who | default list -}}
{{- if and .ipBlock (or (hasKey . "podSelector") (hasKey . "namespaceSelector")) -}}
{{- fail (printf "networkPolicy.%s: an ipBlock stands alone: make podSelector and namespaceSelector a peer of their own" $who) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what is neither a host nor host:port; it is not repeated, since somebody's password may stand in it.
(dict "where" … "hosts" (list …)) */}}
{{- define "pg.checkHosts" -}}
{{- range .hosts -}}
{{- $plain := regexReplaceAll "^\\[[^]]*\\]" . "v6" -}}
{{- $port := regexFind ":[0-9]{1,5}$" $plain | trimPrefix ":" | default "1" | atoi -}}
{{- if or (not (regexMatch "^[^:]*(:[0-9]{1,5})?$" $plain)) (lt $port 1) (gt $port 65535) -}}
{{- fail (printf "%s: host or host:port is wanted: ports go from 1 to 65535, an IPv6 address stands in brackets" $.where) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* No pod may ask for more than it is allowed. */}}
{{- define "pg.checkResources" -}}
{{- $all := dict "gateway" .Values.gateway.resources "redis.internal" .Values.redis.internal.resources -}}
{{- range $pool, $e := include "pg.pools" . | fromJson -}}
{{- $_ := set $all (ternary "engine" (printf "extraEngines.%s" $pool) (eq $pool "engine")) $e.resources -}}
{{- end -}}
{{- range $where, $r := $all -}}
{{- $limits := ($r | default dict).limits | default dict -}}
{{- range $name, $asked := ($r | default dict).requests | default dict -}}
{{- $limit := get $limits $name -}}
{{- if and (hasKey $limits $name) (gt (float64 (include "pg.amount" $asked)) (float64 (include "pg.amount" $limit))) -}}
{{- fail (printf "%s.resources: requests.%s %s is above limits.%s %s" $where $name (include "pg.text" $asked) $name (include "pg.text" $limit)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
