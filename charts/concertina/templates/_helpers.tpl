{{- define "concertina.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Room is left for what is put behind it, such as -rendezvous. */}}
{{- define "concertina.fullname" -}}
{{- $name := include "concertina.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "concertina.selector" -}}
app.kubernetes.io/name: {{ include "concertina.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "concertina.labels" -}}
{{ include "concertina.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "concertina.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "concertina.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "concertina.tag" -}}
{{- default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* The Secret with the certificate of the rendezvous; empty when the operator makes one itself. */}}
{{- define "concertina.certificate" -}}
{{- if ((.Values.certificate).certManager).enabled }}
{{- include "concertina.fullname" . }}-rendezvous-tls
{{- else }}
{{- (.Values.certificate).secretName | default "" }}
{{- end }}
{{- end }}

{{- define "concertina.agentImage" -}}
{{- default (printf "localhost/concertina-agent:%s" (include "concertina.tag" .)) .Values.agentImage }}
{{- end }}

{{- define "concertina.uploaderImage" -}}
{{- default (printf "localhost/concertina-uploader:%s" (include "concertina.tag" .)) .Values.uploaderImage }}
{{- end }}

{{- define "concertina.memoryMost" -}}
{{- $most := (.Values.checkpoint).memoryMost | default "64Gi" -}}
{{- if kindIs "string" $most }}{{ $most }}{{ else }}{{ $most | int64 }}{{ end -}}
{{- end }}

{{/* The ports of the API server: those of an upgrade with --reuse-values from a release without them are the default. */}}
{{- define "concertina.apiServerPorts" -}}
{{- ((.Values.networkPolicy).apiServer).ports | default (list 443 6443 8443 16443) | join ", " -}}
{{- end }}

{{/* Whether there is a NetworkPolicy; empty for no. */}}
{{- define "concertina.policed" -}}
{{- if ne (toString (.Values.networkPolicy).enabled) "false" }}true{{ end -}}
{{- end }}

{{/* The port of tracing.endpoint. */}}
{{- define "concertina.collectorPort" -}}
{{- $url := urlParse (.Values.tracing).endpoint -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $port | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end }}

{{/* A duration as a time after a fixed day, to the nanosecond: such texts compare as what they mean. */}}
{{- define "concertina.instant" -}}
{{- dateInZone "20060102150405.000000000" (toDate "2006-01-02" "2000-01-01" | dateModify .) "UTC" -}}
{{- end }}

{{/* The operator refuses settings beyond these bounds, and would not start. */}}
{{- define "concertina.checkedFleet" -}}
{{- $fleet := .Values.fleet | default dict -}}
{{- range $name, $bounds := dict "minRuntime" (list "0s" "1h") "reclaimTimeout" (list "1s" "1m") "attemptTimeout" (list "10s" "168h") "backfill" (list "0s" "168h") "coolDown" (list "0s" "24h") "firstRegrow" (list "0s" "24h") "lastRegrow" (list "0s" "24h") -}}
{{- with get $fleet $name -}}
{{- $is := include "concertina.instant" . -}}
{{- if or (lt $is (include "concertina.instant" (first $bounds))) (gt $is (include "concertina.instant" (last $bounds))) -}}
{{- fail (printf "fleet.%s is %s, it must be from %s to %s" $name . (first $bounds) (last $bounds)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $first := $fleet.firstRegrow | default "1s" -}}
{{- $last := $fleet.lastRegrow | default "5m" -}}
{{- if gt (include "concertina.instant" $first) (include "concertina.instant" $last) -}}
{{- fail (printf "fleet.firstRegrow is %s, beyond fleet.lastRegrow (%s)" $first $last) -}}
{{- end -}}
{{- toYaml $fleet -}}
{{- end }}
