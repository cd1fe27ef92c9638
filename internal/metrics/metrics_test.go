package metrics_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
)

func TestWhatIsWrittenIsReadAsItWas(t *testing.T) {
	var h metrics.Histogram
	for _, d := range []time.Duration{-1, 0, 1, 20 * time.Microsecond, 20*time.Microsecond + 1, time.Millisecond,
		time.Second, time.Hour} {
		h.Observe(d)
	}
	const odd = "a \"quoted\" \\ back\nslash \xff é"
	var b strings.Builder
	w := metrics.NewWriter(&b)
	w.Family("x_total", metrics.Counter, "Help with \\ and\nlines.")
	w.Sample(1<<60, metrics.Label{Name: "dir", Value: odd}, metrics.Label{Name: "b", Value: ""})
	w.Sample(0.25)
	w.Family("g", metrics.Gauge, "A gauge.")
	w.Sample(math.Inf(1))
	w.Family("empty", metrics.Gauge, "No samples.")
	w.Family("h_seconds", metrics.Histograms, "A histogram.")
	w.Histogram(&h, metrics.Label{Name: "op", Value: "read"})
	w.Histogram(new(metrics.Histogram), metrics.Label{Name: "op", Value: "write"})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	all, err := metricstest.Parse(b.String())
	if err != nil {
		t.Fatalf("parse the metrics: %v\n%s", err, b.String())
	}
	if got := all["x_total"].Samples[0].Labels["dir"]; got != strings.ToValidUTF8(odd, "\uFFFD") {
		t.Errorf("label %q", got)
	}
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"h_seconds_count", []string{"op", "read"}, 8}, {"h_seconds_count", []string{"op", "write"}, 0},
		{"h_seconds_bucket", []string{"op", "read", "le", "2e-05"}, 4},
		{"h_seconds_bucket", []string{"op", "read", "le", "5e-05"}, 5},
		{"h_seconds_bucket", []string{"op", "read", "le", "1"}, 7},
		{"h_seconds_bucket", []string{"op", "read", "le", "30"}, 7},
		{"h_seconds_bucket", []string{"op", "read", "le", "+Inf"}, 8}, {"x_total", []string{"b", ""}, 1<<60 + 0.25},
	} {
		if got, ok := metricstest.Value(all, want.name, want.labels...); !ok || got != want.value {
			t.Errorf("%s%q = %v, want %v", want.name, want.labels, got, want.value)
		}
	}
}

// TestBucketsEndAtTheirBounds checks that a duration equal to a bound is counted in the bucket with this upper bound.
func TestBucketsEndAtTheirBounds(t *testing.T) {
	for d := time.Duration(1); d < 2*time.Minute; d += d/7 + 1 {
		var h metrics.Histogram
		h.Observe(d)
		var b strings.Builder
		w := metrics.NewWriter(&b)
		w.Family("h", metrics.Histograms, "h")
		w.Histogram(&h)
		w.Flush()
		all, err := metricstest.Parse(b.String())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all["h"].Samples {
			if s.Suffix != "_bucket" || s.Labels["le"] == "+Inf" {
				continue
			}
			seconds, _ := strconv.ParseFloat(s.Labels["le"], 64)
			le := time.Duration(math.Round(seconds * 1e9))
			if (s.Value == 1) != (d <= le) {
				t.Fatalf("%v is in the bucket up to %v: %v", d, le, s.Value)
			}
		}
	}
}

func TestObservingAllocatesNothing(t *testing.T) {
	var h metrics.Histogram
	if n := testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	var h metrics.Histogram
	for b.Loop() {
		start := time.Now()
		h.Observe(time.Since(start))
	}
}

func TestCostIsChargedToItsRequest(t *testing.T) {
	metrics.Charge(t.Context(), metrics.Fetched, 1, 1) // has no effect, because the context has no Cost
	var c metrics.Cost
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), metrics.CostKey{}, &c))
	defer cancel()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { metrics.Charge(ctx, metrics.Fetched, 2, 3) })
	}
	all.Wait()
	metrics.Charge(ctx, metrics.Listed, 0, 0)
	if source, blobs, bytes := c.Total(); source != metrics.Fetched|metrics.Listed || blobs != 8 || bytes != 12 {
		t.Errorf("charged source %v, %d blobs, %d bytes, want 8 blobs and 12 bytes, fetched and listed", source, blobs, bytes)
	}
}

func TestAddresses(t *testing.T) {
	for _, text := range []string{"unix:/run/x.sock", "127.0.0.1:9090", "localhost:9090", "[::1]:9090", "127.3.2.1:1"} {
		if a, err := metrics.ParseAddress(text); err != nil || a.IsRemote() {
			t.Errorf("parse the address %s: got %v, remote %t, want an address of this host", text, err, a.IsRemote())
		}
	}
	for _, text := range []string{"0.0.0.0:9090", "[::]:9090", "192.0.2.1:80"} {
		a, err := metrics.ParseAddress(text)
		if err != nil || !a.IsRemote() {
			t.Errorf("parse the address %s: got %v, remote %t, want an address that other hosts reach", text, err, a.IsRemote())
		}
		if err := a.Serve(t.Context(), nil, metrics.Handler{}); err == nil {
			t.Errorf("address %s was served without a token", text)
		}
	}
	for _, text := range []string{"", "unix:", ":9090", "example.org:80", "9090", "127.0.0.1", "127.0.0.1:0",
		"127.0.0.1:http", "127.0.0.1:99999"} {
		if a, err := metrics.ParseAddress(text); err == nil {
			t.Errorf("address %q was accepted as %s", text, a)
		}
	}
}

func listen(t *testing.T, text string) (metrics.Address, net.Listener) {
	t.Helper()
	a, err := metrics.ParseAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	l, err := a.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return a, l
}

func TestASocketIsItsOwners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	a, l := listen(t, "unix:"+path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket has the mode %v (%v), want 0600", info.Mode(), err)
	}
	if _, err := a.Listen(); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("of a living process: %v", err)
	}
	l.Close() // as if the process was killed: the socket remains
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	a, l = listen(t, "unix:"+path)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- a.Serve(ctx, l,
			metrics.Handler{Write: func(_ context.Context,
				out io.Writer) error {
				_, err := io.WriteString(out, "x 1\n")
				return err
			}})
	}()
	client :=
		&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
	for _, want := range []struct {
		path, body string
		code       int
	}{
		{"/metrics", "x 1\n", 200}, {"/", "/metrics\n/debug/pprof/\n", 200},
		{"/debug/pprof/goroutine?debug=1", "goroutine profile", 200},
		{"/debug/pprof/cmdline", "404", 404}, {"/other", "404", 404},
	} {
		answer, err := client.Get("http://metrics" + want.path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want.code || !strings.HasPrefix(string(body), want.body) {
			t.Errorf("GET %s: got %s and %.100q", want.path, answer.Status, body)
		}
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket still exists")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Listen(); err == nil {
		t.Error("a file was replaced")
	}
}

// TestABrowserGetsNothingForOthers checks that requests with another host name are refused. A web page can make a
// browser send such requests to this host.
func TestABrowserGetsNothingForOthers(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	text := free.Addr().String()
	free.Close()
	a, l := listen(t, text)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- a.Serve(ctx, l, metrics.Handler{Write: func(context.Context, io.Writer) error { return nil }})
	}()
	for host, code := range map[string]int{text: 200, "localhost": 200, "evil.example": 403, "evil.example:80": 403} {
		request, _ := http.NewRequest("GET", "http://"+text+"/metrics", nil)
		request.Host = host
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != code {
			t.Errorf("request with host %s: got %s", host, answer.Status)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestOtherHostsNeedTheToken checks that other hosts get metrics only with the token, and never get profiles.
func TestOtherHostsNeedTheToken(t *testing.T) {
	a, l := listen(t, "0.0.0.0:"+freePort(t))
	_, port, _ := net.SplitHostPort(l.Addr().String())
	token, tokenErr := "first", error(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- a.Serve(ctx, l, metrics.Handler{Write: func(context.Context, io.Writer) error { return nil },
			Token: func() (string, error) { return token, tokenErr }})
	}()
	get := func(path, header string) int {
		request, _ := http.NewRequest("GET", "http://127.0.0.1:"+port+path, nil)
		request.Host = "host.example" // Prometheus sends this header if it is configured with a host name
		request.Header.Set("Authorization", header)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	for _, c := range []struct {
		path, token, header string
		err                 error
		want                int
	}{
		{"/metrics", "first", "Bearer first", nil, 200}, {"/metrics", "first", "", nil, 401},
		{"/metrics", "first", "Bearer second", nil, 401},
		{"/metrics", "second", "Bearer second", nil, 200}, {"/metrics", "", "Bearer ", nil, 401},
		{"/metrics", "", "Bearer x", errors.New("unreadable"), 503}, {"/debug/pprof/heap", "first", "Bearer first", nil, 404},
	} {
		token, tokenErr = c.token, c.err
		if got := get(c.path, c.header); got != c.want {
			t.Errorf("GET %s with header %q, token %q (%v): got %d, want %d", c.path, c.header, c.token, c.err, got, c.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// freePort returns a port at which no process listens.
func freePort(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	_, port, _ := net.SplitHostPort(free.Addr().String())
	return port
}
