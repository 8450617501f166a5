#!/usr/bin/env bash
# Builds kube-apiserver of a Kubernetes release from its Go module, once: build.sh FILE RELEASE (such as 33.3, for 1.33.3).
# 4.5 minutes on two cores, 141 MB.
set -euo pipefail
file=$1; release=$2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
printf 'module apiserver\ngo 1.24.0\nrequire k8s.io/kubernetes v1.%s\n' "$release" > go.mod
folder=$(go mod download -json "k8s.io/kubernetes@v1.$release" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
# The module replaces its own parts by folders beside it; elsewhere they are their own releases.
grep -oE 'k8s.io/[a-z-]+ => ./staging' "$folder/go.mod" | cut -d' ' -f1 | sort -u | while read -r part; do
  echo "replace $part => $part v0.$release" >> go.mod
done
printf '//go:build tools\npackage tools\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n' > tools.go
go mod tidy
CGO_ENABLED=0 go build -mod=mod -o "$work/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
mkdir -p "$(dirname "$file")" && mv "$work/kube-apiserver" "$file"
