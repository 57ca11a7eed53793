{{/* What the gateway would refuse at its start, and no schema sees: `GATEWAY_…` variables, parameters of the policy that
is chosen, settings of another discovery. `files/settings.json` is made of the gateway's own settings. */}}
{{- define "pg.checkGateway" -}}
{{- $known := .Files.Get "files/settings.json" | fromJson -}}
{{- $config := default dict .Values.gateway.config -}}
{{- $policy := dict "name" (default "estimated_ttft" $config.policy) "where" "gateway.config.policy_params" "params" $config.policy_params -}}
{{- range .Values.gateway.env -}}
{{- $name := lower .name | trimPrefix "gateway_" -}}
{{- if hasPrefix "gateway_" (lower .name) -}}
{{- $where := printf "gateway.env: %s" .name -}}
{{- if hasKey $known.settings $name -}}
{{- $text := include "pg.text" .value -}}
{{- if not (or (kindIs "invalid" .value) (eq $text "")) -}}
{{- include "pg.checkVariable" (dict "where" $where "text" $text "schema" (get $known.settings $name)) -}}
{{- if eq $name "policy" -}}{{- $_ := set $policy "name" $text -}}{{- end -}}
{{- if eq $name "policy_params" -}}
{{- $_ := set $policy "where" $where -}}{{- $_ := set $policy "params" (fromJson $text) -}}
{{- end -}}
{{- include "pg.checkDiscovery" (dict "where" $where "kinds" (get $known.of_discovery $name) "type" $.Values.discovery.type) -}}
{{- end -}}
{{- else if and (hasPrefix "GATEWAY_" .name) (not (has $name $known.of_commands)) -}}
{{- fail (printf "%s: the gateway has no such setting (docs/configuration.md)" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $params := get $known.policies $policy.name -}}
{{- range $name, $value := default dict $policy.params -}}
{{- if not (hasKey $params $name) -}}
{{- fail (printf "%s: policy %s has no parameter %s; it has: %s" $policy.where $policy.name $name (keys $params | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- $where := printf "%s: %s" $policy.where $name -}}
{{- include "pg.checkVariable" (dict "where" $where "text" (include "pg.text" $value) "schema" (get $params $name)) -}}
{{- end -}}
{{- range $name, $value := $config -}}
{{- if $value -}}
{{- include "pg.checkDiscovery" (dict "where" (printf "gateway.config.%s" $name) "kinds" (get $known.of_discovery $name) "type" $.Values.discovery.type) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "port" "eventsPort" "replayPort" -}}
{{- if get $.Values.discovery $name -}}
{{- include "pg.checkDiscovery" (dict "where" (printf "discovery.%s" $name) "kinds" (list "kubernetes" "dns") "type" $.Values.discovery.type) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what is for another discovery: (dict "where" … "kinds" (list …) or nothing "type" …) */}}
{{- define "pg.checkDiscovery" -}}
{{- if and .kinds (not (has .type .kinds)) -}}
{{- fail (printf "%s is for discovery.type %s, which is %s" .where (join " or " .kinds) .type) -}}
{{- end -}}
{{- end -}}

{{/* Refuses a text that is no value of a setting: (dict "where" … "text" … "schema" …). The text is not repeated. */}}
{{- define "pg.checkVariable" -}}
{{- $type := .schema.type -}}
{{- if kindIs "slice" $type -}}{{- $type = first $type -}}{{- end -}}
{{- if eq $type "boolean" -}}
{{- if not (regexMatch "^(?i:true|false|yes|no|on|off|t|f|y|n|1|0)$" .text) -}}
{{- fail (printf "%s: true or false is wanted" .where) -}}
{{- end -}}
{{- else if has $type (list "integer" "number") -}}
{{- $whole := eq $type "integer" -}}
{{- $form := ternary "^\\s*[+-]?[0-9]+(_[0-9]+)*([.]0*)?\\s*$" "^\\s*[+-]?([0-9][0-9_]*([.][0-9_]*)?|[.][0-9][0-9_]*)([eE][+-]?[0-9]+)?\\s*$" $whole -}}
{{- if not (regexMatch $form .text) -}}
{{- fail (printf "%s: a %s is wanted" .where (ternary "whole number" "number" $whole)) -}}
{{- end -}}
{{- $number := .text | trim | replace "_" "" | trimPrefix "+" | float64 -}}
{{- if and (hasKey .schema "minimum") (lt $number (float64 .schema.minimum)) -}}
{{- fail (printf "%s: %s or more is wanted" .where (include "pg.text" .schema.minimum)) -}}
{{- end -}}
{{- if and (hasKey .schema "exclusiveMinimum") (le $number (float64 .schema.exclusiveMinimum)) -}}
{{- fail (printf "%s: more than %s is wanted" .where (include "pg.text" .schema.exclusiveMinimum)) -}}
{{- end -}}
{{- if and (hasKey .schema "maximum") (gt $number (float64 .schema.maximum)) -}}
{{- fail (printf "%s: %s or less is wanted" .where (include "pg.text" .schema.maximum)) -}}
{{- end -}}
{{- else if eq $type "object" -}}
{{- $parsed := fromJson .text -}}
{{- if or (not (regexMatch "^\\s*[{]" .text)) (hasKey $parsed "Error") -}}
{{- fail (printf "%s: a JSON object is wanted, like {\"name\": \"value\"}" .where) -}}
{{- end -}}
{{- $of := .schema.additionalProperties -}}
{{- if kindIs "map" $of -}}
{{- range $name, $value := $parsed -}}
{{- include "pg.checkVariable" (dict "where" (printf "%s: %s" $.where $name) "text" (toString $value) "schema" $of) -}}
{{- end -}}
{{- end -}}
{{- else if eq $type "array" -}}
{{- if hasPrefix "[" (trim .text) -}}
{{- fail (printf "%s: several are separated by blanks, without brackets" .where) -}}
{{- end -}}
{{- range regexFindAll "\\S+" .text -1 -}}
{{- include "pg.checkVariable" (dict "where" $.where "text" . "schema" $.schema.items) -}}
{{- end -}}
{{- else -}}
{{- if and .schema.enum (not (has .text .schema.enum)) -}}
{{- fail (printf "%s: one of %s is wanted" .where (without .schema.enum "" | join ", ")) -}}
{{- end -}}
{{- $wrong := and .schema.pattern (not (regexMatch .schema.pattern .text)) -}}
{{- if .schema.not -}}{{- $wrong = or $wrong (regexMatch .schema.not.pattern .text) -}}{{- end -}}
{{- if $wrong -}}{{- fail (printf "%s: %s is wanted" .where .schema.description) -}}{{- end -}}
{{- end -}}
{{- end -}}
