package metrics_test

import (
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

type readSample struct {
	name   string
	labels map[string]string
	value  float64
}

func readAll(text string) (all []readSample, err error) {
	err = metrics.Read(strings.NewReader(text), func(name string, labels map[string]string, value float64) {
		all = append(all, readSample{name, maps.Clone(labels), value})
	})
	return all, err
}

// TestRead checks that Read returns the samples that a Writer has written.
func TestRead(t *testing.T) {
	const odd = "a \"quoted\" \\ back\nslash, é}"
	var b strings.Builder
	w := metrics.NewWriter(&b)
	w.Family("x_total", metrics.Counter, "Help.")
	w.Sample(0.25, metrics.Label{Name: "dir", Value: odd}, metrics.Label{Name: "b", Value: ""})
	w.Sample(math.Inf(1))
	w.Flush()
	all, err := readAll(b.String() + "other{a=\"1\",} 3 1700000000\n")
	if err != nil || len(all) != 3 {
		t.Fatalf("read %q: got %v, %v, want 3 samples", b.String(), all, err)
	}
	if s := all[0]; s.name != "x_total" || s.value != 0.25 || s.labels["dir"] != odd || len(s.labels) != 2 {
		t.Errorf("first sample: got %+v", s)
	}
	if s := all[1]; len(s.labels) != 0 || !math.IsInf(s.value, 1) {
		t.Errorf("sample without labels: got %+v", s)
	}
	if s := all[2]; s.name != "other" || s.value != 3 || s.labels["a"] != "1" {
		t.Errorf("sample with a timestamp: got %+v", s)
	}
	for _, bad := range []string{"x", "x{", `x{a="1} 2`, `x{a} 2`, "x 1 2 3", "x y", "{} 1", `x{a="1"}`} {
		if all, err := readAll(bad + "\n"); err == nil {
			t.Errorf("read %q: got %v, want an error", bad, all)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{"", "x 1\n", "# HELP x y\nx{a=\"b\\n\",c=\"\"} 1e-5 12\n", "x{a=\"", "x{=\"\"} NaN"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := readAll(text)
		for _, s := range all {
			if s.name == "" {
				t.Errorf("a sample of %q has no name (%v)", text, err)
			}
		}
	})
}
