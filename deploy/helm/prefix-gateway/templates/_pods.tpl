{{/* Labels that this chart gives to every object, as a list; pods have fewer, `prefix-gateway.io/…` all to themselves. */}}
{{- define "pg.labelsOfChart" -}}
[helm.sh/chart, app.kubernetes.io/version, app.kubernetes.io/managed-by, app.kubernetes.io/part-of,
 app.kubernetes.io/name, app.kubernetes.io/instance, app.kubernetes.io/component]
{{- end -}}

{{/* Refuses keys that stand there already: YAML would have them twice, and selectors would miss.
(dict "where" "gateway.podLabels" "given" … "taken" (list …) "by" "this chart") */}}
{{- define "pg.checkKeys" -}}
{{- range $key, $_ := .given -}}
{{- if or (has $key $.taken) (and $.fleet (hasPrefix "prefix-gateway.io/" $key)) -}}
{{- fail (printf "%s: %s is set by %s: leave it out" $.where $key $.by) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pg.checkLabels" -}}
{{- $v := .Values -}}
{{- $all := include "pg.labelsOfChart" . | fromYamlArray -}}
{{- $pods := slice $all 4 -}}
{{- include "pg.checkKeys" (dict "where" "commonLabels" "given" $v.commonLabels "taken" $all "fleet" true "by" "this chart") -}}
{{- include "pg.checkKeys" (dict "where" "gateway.podLabels" "given" $v.gateway.podLabels "taken" $pods "fleet" true "by" "this chart") -}}
{{- include "pg.checkKeys" (dict "where" "gateway.podAnnotations" "given" $v.gateway.podAnnotations "taken" (list "checksum/config") "by" "this chart") -}}
{{- range $pool, $e := include "pg.pools" . | fromJson -}}
{{- $where := ternary "engine" (printf "extraEngines.%s" $pool) (eq $pool "engine") -}}
{{- include "pg.checkKeys" (dict "where" (printf "%s.podLabels" $where) "given" $e.podLabels "taken" $pods "fleet" true "by" "this chart") -}}
{{- include "pg.checkKeys" (dict "where" (printf "%s.podAnnotations" $where) "given" $e.podAnnotations "taken" (list "prefix-gateway.io/dp-ranks") "by" (printf "%s.dataParallelSize" $where)) -}}
{{- end -}}
{{- range $where, $given := dict "monitoring.labels" $v.monitoring.labels "monitoring.dashboardLabel" $v.monitoring.dashboardLabel -}}
{{- include "pg.checkKeys" (dict "where" $where "given" $given "taken" $all "fleet" true "by" "this chart") -}}
{{- include "pg.checkKeys" (dict "where" $where "given" $given "taken" (keys (default dict $v.commonLabels)) "by" "commonLabels") -}}
{{- end -}}
{{- end -}}

{{/* Variables of a container: the chart's own (`own`, a YAML list) and those of the values (`more`), whose numbers become
text, since a container takes nothing else. One name twice is refused. A YAML list. */}}
{{- define "pg.env" -}}
{{- $all := .own | fromYamlArray -}}
{{- $names := dict -}}
{{- range $all -}}{{- $_ := set $names .name "this chart sets it, too" -}}{{- end -}}
{{- range $each := .more -}}
{{- with get $names $each.name -}}{{- fail (printf "%s: %s is given twice: %s" $.where $each.name .) -}}{{- end -}}
{{- $_ := set $names $each.name "once is enough" -}}
{{- $one := deepCopy $each -}}
{{- if hasKey $one "value" -}}{{- $_ := set $one "value" (ternary "" (include "pg.text" $one.value) (kindIs "invalid" $one.value)) -}}{{- end -}}
{{- $all = append $all $one -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Volumes of the values, none of which may have the name of another. (dict "where" … "more" … "taken" (list …)) */}}
{{- define "pg.volumes" -}}
{{- $names := .taken -}}
{{- range .more -}}
{{- if has .name $names -}}{{- fail (printf "%s: a pod has one volume called %s already" $.where .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toYaml .more -}}
{{- end -}}
