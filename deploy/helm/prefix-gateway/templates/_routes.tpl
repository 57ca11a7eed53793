{{/* Seconds of a duration of the Gateway API (1h30m, 500ms), as text. */}}
{{- define "pg.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(ms|h|m|s)" . -1 -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $sum = addf $sum (mulf (float64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- printf "%.3f" $sum -}}
{{- end -}}

{{/* Ways in that end at a closed door: proxies that can't get through the TLS of the gateway's port. */}}
{{- define "pg.checkRoutes" -}}
{{- $v := .Values -}}
{{- if $v.httpRoute.enabled -}}
{{- if not $v.httpRoute.parentRefs -}}
{{- fail "httpRoute.enabled: set httpRoute.parentRefs" -}}
{{- end -}}
{{- $all := float64 (include "pg.seconds" $v.httpRoute.requestTimeout) -}}
{{- if and (gt $all 0.0) (gt (float64 (include "pg.seconds" $v.httpRoute.backendRequestTimeout)) $all) -}}
{{- fail (printf "httpRoute.backendRequestTimeout %s is above requestTimeout %s" $v.httpRoute.backendRequestTimeout $v.httpRoute.requestTimeout) -}}
{{- end -}}
{{- if and $v.tls.existingSecret (not $v.httpRoute.backendTLS.hostname) -}}
{{- fail "httpRoute.enabled and tls.existingSecret: the Gateway has to speak TLS to the gateway. Set httpRoute.backendTLS.hostname, a name in that certificate, and backendTLS.caConfigMap where a CA of yours signed it; or leave tls.existingSecret empty and let the Gateway end TLS" -}}
{{- end -}}
{{- if and $v.tls.requireClientCertificate (not $v.httpRoute.backendTLS.clientCertificate) -}}
{{- fail "httpRoute.enabled and tls.requireClientCertificate: the Gateway is the client, not who asks it. Let it show a certificate (spec.tls.backend.clientCertificateRef of the Gateway) and set httpRoute.backendTLS.clientCertificate, or leave tls.requireClientCertificate out" -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.enabled $v.tls.requireClientCertificate -}}
{{- $shown := list "nginx.ingress.kubernetes.io/proxy-ssl-secret" "haproxy.org/server-crt" "haproxy-ingress.github.io/secure-crt-secret" -}}
{{- $found := false -}}
{{- range $shown -}}{{- if hasKey (default dict $v.ingress.annotations) . -}}{{- $found = true -}}{{- end -}}{{- end -}}
{{- if not $found -}}
{{- fail "ingress.enabled and tls.requireClientCertificate: the controller is the client, not who asks it. Let it show a certificate (ingress.annotations: nginx.ingress.kubernetes.io/proxy-ssl-secret: NAMESPACE/SECRET), or leave tls.requireClientCertificate out" -}}
{{- end -}}
{{- end -}}
{{- end -}}
