package hosts

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("hosts.json",
		`[{"targets": ["c:1", "a:9464"], "labels": {"zone": "x"}}, {"targets": ["unix:/run/m.sock"]}]`)
	for list, want := range map[string]string{
		"b:1":                         "b:1",
		" b:1 , a:2,b:1,":             "a:2 b:1",
		"[::1]:9464,10.0.0.1:1":       "10.0.0.1:1 [::1]:9464",
		file + ",a:9464":              "a:9464 c:1 unix:/run/m.sock",
		"unix:/x.sock":                "unix:/x.sock",
		"dns:localhost:9464,dns:::80": "error", // an item is refused before its neighbours are used
		"":                            "error", ",": "error", "a": "error", "a:0": "error", "a:http": "error", ":1": "error",
		filepath.Join(dir, "missing.json"): "error", write("bad.json", "{"): "error",
		write("worse.json", `[{"targets": ["a"]}]`): "error",
		write("empty.json", `[]`):                   "error",
	} {
		got, err := Resolve(t.Context(), list)
		if text := strings.Join(got, " "); err == nil && text != want || err != nil && want != "error" {
			t.Errorf("list %q: got %q, %v, want %q", list, text, err, want)
		}
	}
	all, err := Resolve(t.Context(), "dns:localhost:9464")
	if err != nil || !slices.ContainsFunc(all, func(a string) bool { return a == "127.0.0.1:9464" || a == "[::1]:9464" }) {
		t.Errorf("addresses of localhost: got %q, %v", all, err)
	}
}

// answers serves texts one after the other, and refuses requests without the token.
func answers(t *testing.T, texts ...string) string {
	t.Helper()
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, texts[min(n, len(texts)-1)])
		n++
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

const metricsText = `artifactfs_build_info{version="v1"} 1
artifactfs_mounts{state="mounted"} 3
artifactfs_mounts{state="degraded"} 1
artifactfs_mounts{state="failed"} 2
artifactfs_session_pending_refs{mount="/a"} 2
artifactfs_session_pending_refs{mount="/b"} 0
artifactfs_session_pending_seconds{mount="/a"} 70
artifactfs_anonymous_memory_bytes 1000
artifactfs_mount_operation_errors_total{mount="/a",error="EIO"} 4
artifactfs_mount_operation_errors_total{mount="/a",error="EACCES"} 9
artifactfs_operation_duration_seconds_count{op="read"} %d
artifactfs_mount_operations_fetched_total{mount="/a"} %d
artifactfs_remote_requests_total{remote="r"} 5
artifactfs_remote_received_bytes_total{remote="r"} 50
process_cpu_seconds_total 1
process_start_time_seconds %d
`

func TestSample(t *testing.T) {
	good := answers(t, fmt.Sprintf(metricsText, 100, 10, 1), fmt.Sprintf(metricsText, 300, 60, 1),
		fmt.Sprintf(metricsText, 50, 0, 2))
	other := answers(t, "x 1\n")
	broken := answers(t, "artifactfs_mounts{\n")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := free.Addr().String()
	free.Close()
	s := Sampler{Token: "secret"}
	targets := []string{good, other, broken, down, "unix:" + filepath.Join(t.TempDir(), "none.sock")}
	all := s.Sample(t.Context(), targets)
	for i, h := range all {
		if h.Target != targets[i] || h.Up != (i == 0) || (h.Error == "") != h.Up {
			t.Errorf("host %d: got %+v", i, h)
		}
	}
	if all[3].Error != "connection refused" {
		t.Errorf("host that does not listen: got the error %q", all[3].Error)
	}
	h := all[0]
	if h.Version != "v1" || h.Mounts != 4 || h.Degraded != 1 || h.Failed != 2 || h.PendingSessions != 1 ||
		h.PendingSeconds != 70 ||
		h.MemoryBytes != 1000 || h.Errors != 4 || h.ReceivedBytes != 50 || h.Rates != nil {
		t.Errorf("first sample: got %+v", h)
	}
	h = s.Sample(t.Context(), targets)[0]
	if r := h.Rates; r == nil || r.Requests <= 0 || r.RemoteRequests != 0 || r.Hits == nil || *r.Hits != 0.75 {
		t.Errorf("second sample: got rates %+v, want a hit ratio of 0.75", h.Rates)
	}
	// Another worker has begun to count at zero: its counters are the difference.
	h = s.Sample(t.Context(), targets)[0]
	if r := h.Rates; r == nil || r.Hits == nil || *r.Hits != 1 || r.RemoteRequests <= 0 {
		t.Errorf("sample after a takeover: got rates %+v", h.Rates)
	}
	s.Token = ""
	if h := s.Sample(t.Context(), targets)[0]; h.Up || !strings.Contains(h.Error, "401") {
		t.Errorf("sample without the token: got %+v", h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if h := s.Sample(ctx, targets)[0]; h.Up {
		t.Errorf("sample after the end: got %+v", h)
	}
}

// nameServer answers every question with one record: for SRV the target node-1.fleet.example with port 9464, else the
// address 192.0.2.7. The forms of messages and records are those of RFC 1035 and RFC 2782.
func nameServer(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		question := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return
			}
			end := 12
			for end < n && question[end] != 0 {
				end += int(question[end]) + 1
			}
			end += 5 // the end of the name, type and class
			kind := question[end-3]
			answer := append([]byte{question[0], question[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, question[12:end]...)
			answer = append(answer, 0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60)
			switch kind {
			case 33:
				answer = append(answer, 0, 28, 0, 1, 0, 1, 9464>>8, 9464&0xff)
				for _, label := range []string{"node-1", "fleet", "example"} {
					answer = append(append(answer, byte(len(label))), label...)
				}
				answer = append(answer, 0)
			case 1:
				answer = append(answer, 0, 4, 192, 0, 2, 7)
			default: // no record
				answer = answer[:end]
				answer[7] = 0
			}
			conn.WriteTo(answer, from)
		}
	}()
	return conn.LocalAddr().String()
}

func TestNames(t *testing.T) {
	server := nameServer(t)
	resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server)
	}}
	defer func() { resolver = net.DefaultResolver }()
	for list, want := range map[string]string{
		"srv:_metrics._tcp.artifactfs.example.": "node-1.fleet.example:9464",
		"dns:artifactfs.example.:9464":          "192.0.2.7:9464",
	} {
		got, err := Resolve(t.Context(), list)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("list %q: got %q, %v, want %q", list, got, err, want)
		}
	}
}
