{{/* A quantity of Kubernetes or a size of Redis (kb, mb, gb: powers of 1024) in bytes, cores or pieces, as a float. */}}
{{- define "pg.amount" -}}
{{- $text := include "pg.text" . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0
      "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0
      "kb" 1024.0 "mb" 1048576.0 "gb" 1073741824.0 -}}
{{- $unit := trimPrefix $number $text -}}
{{- if hasKey $units $unit -}}{{- printf "%.3f" (mulf (float64 $number) (get $units $unit)) -}}
{{- else -}}{{- printf "%.3f" (float64 $text) -}}
{{- end -}}
{{- end -}}

{{/* What is said twice, at the wrong place, or of which half is missing: of the ways in, and of bounds. */}}
{{- define "pg.checkDoors" -}}
{{- $v := .Values -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "pg.fullname" .)) -}}
{{- fail (printf "%s can't be the name of a Service, which begins with a letter: set fullnameOverride" (include "pg.fullname" .)) -}}
{{- end -}}
{{- if and $v.tls.requireClientCertificate (not $v.tls.existingSecret) -}}
{{- fail "tls.requireClientCertificate: without TLS nobody shows a certificate; set tls.existingSecret" -}}
{{- end -}}
{{- if and $v.apiKeys.existingSecret $v.apiKeys.keys -}}
{{- fail "apiKeys.existingSecret and apiKeys.keys: give one of them" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.enabled: set ingress.hosts" -}}
{{- end -}}
{{- $scaled := dict "gateway" $v.gateway.autoscaling -}}
{{- range $pool, $e := include "pg.pools" . | fromJson -}}
{{- $_ := set $scaled (ternary "engine" (printf "extraEngines.%s" $pool) (eq $pool "engine")) $e.autoscaling -}}
{{- end -}}
{{- range $name, $a := $scaled -}}
{{- if and $a.enabled (gt (int $a.minReplicas) (int $a.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling: minReplicas %d is above maxReplicas %d" $name (int $a.minReplicas) (int $a.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if eq $v.redis.mode "internal" -}}
{{- $r := $v.redis.internal -}}
{{- with ($r.resources | default dict).limits -}}
{{- if and .memory (gt (float64 (include "pg.amount" $r.maxMemory)) (float64 (include "pg.amount" .memory))) -}}
{{- fail (printf "redis.internal.maxMemory %s is above the pod's memory limit %s: it would be killed before it is full" $r.maxMemory (include "pg.text" .memory)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
