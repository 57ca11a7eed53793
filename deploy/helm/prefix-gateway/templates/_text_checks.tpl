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
{{- $seen := dict -}}
{{- range $line := $v.workers -}}
{{- $parts := splitList "," $line -}}
{{- $said := dict -}}
{{- range rest $parts -}}
{{- $name := regexFind "^[^=]+=" . | trimSuffix "=" | trim -}}
{{- if not (has $name $fields) -}}
{{- fail (printf "workers: %q: behind the URL stands name=value, with a name of %s" . (join ", " $fields)) -}}
{{- end -}}
{{- if hasKey $said $name -}}{{- fail (printf "workers: %q: %s is said already" . $name) -}}{{- end -}}
{{- $_ := set $said $name (regexReplaceAll "^[^=]+=" . "" | trim) -}}
{{- include "pg.checkWorker" (dict "where" (printf "workers: %q" .) "name" $name "value" (get $said $name)) -}}
{{- end -}}
{{- $url := first $parts | trim -}}
{{- if regexMatch "[?#@]" $url -}}
{{- fail "workers: a base URL has no query, no fragment and no credentials" -}}
{{- end -}}
{{- $id := printf "%s#%s" (regexReplaceAll "/+$" $url "") (get $said "dp_rank" | default "") -}}
{{- if hasKey $seen $id -}}{{- fail (printf "workers: %q is listed twice" $url) -}}{{- end -}}
{{- $_ := set $seen $id true -}}
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

{{/* Refuses what the gateway could not read of a worker: (dict "where" … "name" … "value" …) */}}
{{- define "pg.checkWorker" -}}
{{- $endpoint := list "^(ipc://.+|tcp://(\\[[^]]+\\]|[^]\\[:/?#@* ]+):[0-9]{1,5})$" "an endpoint like tcp://10.0.0.7:5557" -}}
{{- $count := list "^0*[1-9][0-9]{0,8}$" "a whole number from 1 to 999,999,999" -}}
{{- $forms := dict "events" $endpoint "replay" $endpoint "block_size" $count "capacity" $count "max_requests" $count -}}
{{- $_ := set $forms "weight" (list "^\\+?(0*[1-9][0-9]*([.][0-9]*)?|0*[.]0*[1-9][0-9]*)([eE][+-]?[0-9]{1,2})?$" "a number from 0.001 to 1,000") -}}
{{- $_ := set $forms "dp_rank" (list "^[0-9]+$" "a whole number from 0") -}}
{{- $_ := set $forms "scheme" (list "^https?$" "http or https") -}}
{{- with get $forms (replace "-" "_" .name) -}}
{{- $good := regexMatch (first .) $.value -}}
{{- if and $good (eq $.name "weight") -}}
{{- $weight := trimPrefix "+" $.value | float64 -}}
{{- $good = and (ge $weight 0.001) (le $weight 1000.0) -}}
{{- end -}}
{{- if not $good -}}{{- fail (printf "%s: %s is wanted" $.where (last .)) -}}{{- end -}}
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
