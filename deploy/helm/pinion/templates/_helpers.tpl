{{- define "pinion.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "pinion.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "pinion.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "pinion.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pinion.selector" -}}
app.kubernetes.io/name: {{ include "pinion.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pinion.labels" -}}
{{ include "pinion.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "pinion.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pinion.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* One option of pinion.toml. JSON's strings, numbers, booleans and arrays of them are TOML's, too. */ -}}
{{- define "pinion.option" -}}
{{ index . 0 }} = {{ index . 1 | toJson }}
{{- end -}}

{{- /* Whether the model is ORG/NAME[@REV] of the hub, as `pinion serve` reads it. */ -}}
{{- define "pinion.isOfHub" -}}
{{- $part := "[A-Za-z0-9_][A-Za-z0-9._-]*" -}}
{{- $path := .Values.model.path -}}
{{- if and (regexMatch (printf "^%s/%s(@.+)?$" $part $part) $path) (not (hasSuffix ".gguf" (lower $path))) -}}
yes
{{- end -}}
{{- end -}}

{{- /* Environment of what downloads; extraEnv, which may name a proxy or another hub, comes last. */ -}}
{{- define "pinion.hubEnv" -}}
- name: HF_HOME
  value: /var/cache/pinion
{{- with .Values.hubToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: HF_TOKEN
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What the containers of a pod have in common; each may append mounts. */ -}}
{{- define "pinion.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/pinion
    readOnly: true
  - name: cache
    mountPath: /var/cache/pinion
{{- end -}}
