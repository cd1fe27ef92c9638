package cluster

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestRelay starts the relay of deploy/kubernetes. Volumes with the attribute via read through it, and continue without
// it.
func TestRelay(t *testing.T) {
	w := start(t)
	base, _, _ := repositories(t)
	host := strings.TrimSuffix(base.URL(""), "/")
	yaml := objects(t, "relay.yaml", map[string]string{"artifactfs:latest": nodeImage}, 1)
	const allow = "--allow=https://git.example.org"
	if strings.Count(yaml, allow) != 1 {
		t.Fatalf("relay.yaml contains %q %d times, want once", allow, strings.Count(yaml, allow))
	}
	check(t, w.Apply(strings.Replace(yaml, allow, "--allow="+host, 1)))
	remove := func() {
		_, err := w.Kubectl("delete", "deployment,service", "-n", namespace, "artifactfs-relay", "--ignore-not-found")
		check(t, err)
		check(t, w.WaitGone(t.Context(), namespace, "app=artifactfs-relay"))
	}
	t.Cleanup(func() {
		_, err := w.Kubectl("delete", "deployment,service", "-n", namespace, "artifactfs-relay", "--ignore-not-found")
		check(t, err)
	})
	check(t, w.WaitReady(t.Context(), namespace, "app=artifactfs-relay", 1))
	// There is no kube-proxy and no DNS, so the address of the service cannot be used.
	address, err := w.Kubectl("get", "pod", "-n", namespace, "-l", "app=artifactfs-relay", "-o",
		"jsonpath={.items[0].status.podIP}")
	check(t, err)
	relay := "http://" + address + ":9428"
	p := pod{name: "via", attributes: map[string]string{"remote": base.URL("app.git"), "via": relay, "prefetch": "none"}}
	w.single(t, p)
	w.expect(t, p.name, [2]string{"cat /work/dir01/* | sha256sum | wc -l; ls /work/dir01 | wc -l", "1\n50"})
	requests := len(base.Log().Requests())
	upstream, sent := metric(t, relay, "upstream_requests_total"), metric(t, relay, "sent_bytes_total")
	if requests == 0 || upstream < float64(requests) || sent < 50_000 {
		t.Errorf("the git server got %d requests, and the relay has sent %.0f requests and served %.0f bytes; want all requests from the relay",
			requests, upstream, sent)
	}
	remove()
	w.expect(t, p.name, [2]string{"cat /work/dir02/* | sha256sum | wc -l", "1"})
	if !t.Failed() {
		summary.add(t, tableFeatures,
			"relay of deploy/kubernetes: a volume with the attribute via gets its contents from the relay (%.0f bytes), "+
				"and without the relay from the git server", sent)
	}
}

// metric returns the value of a metric of a relay.
func metric(t *testing.T, relay, name string) float64 {
	t.Helper()
	r, err := http.Get(relay + "/metrics")
	check(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	check(t, err)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), "artifactfs_relay_"+name+" "); found {
			v, err := strconv.ParseFloat(value, 64)
			check(t, err)
			return v
		}
	}
	t.Fatalf("the relay has no metric %s:\n%s", name, text)
	return 0
}
