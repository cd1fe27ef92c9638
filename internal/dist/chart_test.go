package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
)

var update = flag.Bool("update", false, "write the objects of deploy/kubernetes from the chart")

const deploy = "../../deploy"

// render returns a rendered template of the Helm chart. The chart uses only actions of text/template, on which Helm is
// based, and its file of values contains only lines of the form KEY: VALUE.
func render(t *testing.T, name string, set map[string]string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, "helm/artifactfs/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(key, "#") {
			values[key] = strings.Trim(value, `"`)
		}
	}
	for key, value := range set {
		if _, ok := values[key]; !ok {
			t.Fatalf("the chart has no value %s", key)
		}
		values[key] = value
	}
	chart, err := template.New(name).Option("missingkey=error").ParseFiles(filepath.Join(deploy,
		"helm/artifactfs/templates", name))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = chart.Execute(&out, map[string]any{"Values": values, "Release": map[string]string{"Namespace": "artifactfs"}})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestObjectsAreThoseOfTheChart checks that the plain Kubernetes objects are equal to the chart with its default
// values, apart from the head of each file.
func TestObjectsAreThoseOfTheChart(t *testing.T) {
	for file, c := range map[string]struct {
		template, mark string // the head of the file ends before the text mark
		set            map[string]string
	}{
		"artifactfs.yaml": {"node.yaml", "apiVersion: storage.k8s.io/v1\nkind: CSIDriver", nil},
		"controller.yaml": {"controller.yaml", "apiVersion: apps/v1\nkind: Deployment",
			map[string]string{"provisioner": "registry.k8s.io/sig-storage/csi-provisioner:v5.3.0"}},
		"relay.yaml": {"relay.yaml", "apiVersion: apps/v1\nkind: Deployment",
			map[string]string{"relayAllow": "https://git.example.org"}},
	} {
		path := filepath.Join(deploy, "kubernetes", file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, _, ok := strings.Cut(string(text), c.mark)
		if !ok {
			t.Fatalf("%s does not contain %q", path, c.mark)
		}
		want := head + strings.TrimLeft(render(t, c.template, c.set), "\n")
		if want == string(text) {
			continue
		}
		if !*update {
			t.Errorf("%s is not the chart with its default values: go test ./internal/dist -run Chart -update", path)
			continue
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestValuesOfTheChart(t *testing.T) {
	out := render(t, "node.yaml", map[string]string{"via": "http://relay:9428", "kubeletDir": "/data/kubelet",
		"driver": "d.example", "image": "i:1"})
	for _, want := range []string{"- --via=http://relay:9428\n", "path: /data/kubelet/plugins/d.example,",
		"name: d.example\n", "image: i:1\n",
		"- --kubelet-socket=/data/kubelet/plugins/d.example/csi.sock\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("rendered chart does not contain %q", want)
		}
	}
	for _, rest := range []string{"/var/lib/kubelet", "artifactfs:latest", "csi.artifactfs"} {
		if strings.Contains(out, rest) {
			t.Errorf("rendered chart contains %q although another value is set", rest)
		}
	}
	for _, name := range []string{"relay.yaml", "controller.yaml"} {
		if out := strings.TrimSpace(render(t, name, nil)); out != "" {
			t.Errorf("objects of %s are installed by default: %s", name, out)
		}
	}
}
