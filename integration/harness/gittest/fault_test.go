package gittest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// blobOf returns the ID of a blob of the served repository.
func (sv *served) blobOf(t testing.TB) object.ID {
	t.Helper()
	return object.MustID(gitIn(t, sv.dir, "rev-parse", "main:dir1/file1"))
}

func fetchOf(id object.ID) io.Reader { return bytes.NewReader(fetchBody(id.Format(), id)) }

// clone runs git clone and returns the directory of the clone.
func (sv *served) clone(t testing.TB, args ...string) (dir string, err error) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "c")
	_, err = Git(t.Context(), "", append(append([]string{"clone", "-q"}, args...), sv.url(), dir)...)
	return dir, err
}

// packOf returns the pack in a response.
func packOf(answer []byte) []byte {
	var pack []byte
	p := packets{each: func(kind packetKind, payload []byte) {
		if kind == dataPacket && len(payload) > 0 && payload[0] == packBand {
			pack = append(pack, payload[1:]...)
		}
	}}
	p.feed(answer)
	return pack
}

func TestCut(t *testing.T) {
	sv := start(t, ServerOptions{})
	id := sv.blobOf(t)
	_, whole, err := read(t, sv.url(), fetchOf(id))
	if err != nil {
		t.Fatal(err)
	}
	// Git divides a pack into packets differently in each run, so the lengths of responses differ by a few bytes.
	for _, after := range []int64{0, 1, 100, int64(len(whole)) - 64} {
		sv.Log().Reset()
		i := sv.Inject(Fault{Kind: Cut, On: Fetch, After: after})
		_, got, err := read(t, sv.url(), fetchOf(id))
		i.Remove()
		if err == nil || int64(len(got)) != after {
			t.Errorf("cut after %d bytes: got %d bytes, error %v", after, len(got), err)
		}
		r := sv.Log().Requests()[0]
		if i.Hits() != 1 || r.BytesOut != after || r.Fault != "cut" {
			t.Errorf("cut after %d bytes: got %d hits and log entry %v", after, i.Hits(), r)
		}
		if after == 100 && (r.PackErr == "" || r.Blobs != 0) {
			t.Errorf("the log does not report that the pack was truncated: %v", r)
		}
	}
	i := sv.Inject(Fault{Kind: Cut, On: Fetch, After: 2000})
	if _, err := sv.clone(t); err == nil || i.Hits() == 0 {
		t.Errorf("git clone succeeded, %d hits", i.Hits())
	}
	i.Remove()
	if _, err := sv.clone(t); err != nil {
		t.Errorf("clone after Remove: %v", err)
	}
}

func TestStallEndsWhenRemoved(t *testing.T) {
	sv := start(t, ServerOptions{})
	id := sv.blobOf(t)
	_, whole, err := read(t, sv.url(), fetchOf(id))
	if err != nil {
		t.Fatal(err)
	}
	i := sv.Inject(Fault{Kind: Stall, On: Fetch, After: 50})
	resp, err := post(t, http.DefaultClient, sv.url(), fetchOf(id))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, 50)
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		t.Fatal(err)
	}
	more := make(chan []byte)
	go func() {
		rest, _ := io.ReadAll(resp.Body)
		more <- rest
	}()
	select {
	case b := <-more:
		t.Fatalf("got %d bytes in spite of a stall", len(b))
	case <-time.After(200 * time.Millisecond):
	}
	i.Remove()
	if rest := <-more; !bytes.Equal(packOf(append(got, rest...)), packOf(whole)) {
		t.Errorf("got %d bytes in all without the complete pack, want about %d", 50+len(rest), len(whole))
	}
}

func TestDripIsSlowAndWhole(t *testing.T) {
	sv := start(t, ServerOptions{})
	id := sv.blobOf(t)
	_, whole, err := read(t, sv.url(), fetchOf(id))
	if err != nil {
		t.Fatal(err)
	}
	const rest = 64
	sv.Inject(Fault{Kind: Drip, On: Fetch, After: int64(len(whole)) - rest, Every: 5 * time.Millisecond})
	begin := time.Now()
	_, got, err := read(t, sv.url(), fetchOf(id))
	if took := time.Since(begin); err != nil || !bytes.Equal(packOf(got), packOf(whole)) ||
		took < rest/2*5*time.Millisecond {
		t.Errorf("got %d of %d bytes in %v, %v", len(got), len(whole), took, err)
	}
}

func TestStatus(t *testing.T) {
	sv := start(t, ServerOptions{})
	id := sv.blobOf(t)
	for _, c := range []struct {
		fault  Fault
		status int
		retry  string
	}{
		{Fault{}, 503, ""},
		{Fault{Status: 500}, 500, ""},
		{Fault{Status: 403}, 403, ""},
		{Fault{Status: 404}, 404, ""},
		{Fault{Status: 429, RetryAfter: 2 * time.Second}, 429, "2"},
	} {
		sv.Log().Reset()
		c.fault.Kind = Status
		i := sv.Inject(c.fault)
		resp, err := post(t, http.DefaultClient, sv.url(), fetchOf(id))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status || resp.Header.Get("Retry-After") != c.retry {
			t.Errorf("got status %d, Retry-After %q, want %d, %q", resp.StatusCode, resp.Header.Get("Retry-After"),
				c.status, c.retry)
		}
		if _, err := sv.clone(t); err == nil {
			t.Errorf("git clone succeeded in spite of status %d", c.status)
		}
		i.Remove()
		if r := sv.Log().Requests()[0]; r.Status != c.status || r.Fault != "status" || len(r.Wants) != 1 {
			t.Errorf("log entry: got %v", r)
		}
	}
}

func TestRequireAuth(t *testing.T) {
	sv := start(t, ServerOptions{})
	i := sv.Inject(Fault{Kind: RequireAuth, User: "me", Pass: "right"})
	url := strings.Replace(sv.url(), "http://", "http://me:%s@", 1)
	for pass, want := range map[string]bool{"right": true, "wrong": false} {
		_, err := Git(t.Context(), "", "clone", "-q", fmt.Sprintf(url, pass), filepath.Join(t.TempDir(), "c"))
		if (err == nil) != want {
			t.Errorf("clone with the %s password: %v", pass, err)
		}
	}
	if _, err := sv.clone(t); err == nil {
		t.Error("git clone without a password succeeded")
	}
	i.Remove()
	bearer := sv.Inject(Fault{Kind: RequireAuth, Pass: "token"})
	resp, err := post(t, http.DefaultClient, sv.url(), fetchOf(sv.blobOf(t)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("answer without a login: got status %d and challenge %q, want 401 and \"Bearer\"", resp.StatusCode,
			resp.Header.Get("WWW-Authenticate"))
	}
	if status, _, err := read(t, sv.url(), fetchOf(sv.blobOf(t)), "Authorization", "Bearer token"); status != 200 ||
		err != nil {
		t.Errorf("request with the token: got status %d, %v", status, err)
	}
	if bearer.Hits() != 1 {
		t.Errorf("got %d hits, want 1, because right credentials are not a hit", bearer.Hits())
	}
}

func TestGarbage(t *testing.T) {
	sv := start(t, ServerOptions{})
	i := sv.Inject(Fault{Kind: Garbage, After: 10_000})
	status, got, err := read(t, sv.url(), fetchOf(sv.blobOf(t)))
	if status != 200 || err != nil || len(got) != 10_000 || packOf(got) != nil {
		t.Errorf("garbage: got status %d, %d bytes, %v", status, len(got), err)
	}
	if _, err := sv.clone(t); err == nil || i.Hits() < 2 {
		t.Errorf("git clone of garbage succeeded; %d hits", i.Hits())
	}
}

func TestNoFilter(t *testing.T) {
	sv := start(t, ServerOptions{})
	sv.Inject(Fault{Kind: NoFilter})
	dir, err := sv.clone(t, "--filter=blob:none", "--no-checkout")
	if err != nil {
		t.Fatal(err)
	}
	if have, all := len(blobsIn(t, dir)), len(blobsIn(t, sv.dir)); have != all {
		t.Errorf("stock git fetched %d of %d blobs, but a server without filters sends all", have, all)
	}
	_, got, err := read(t, sv.url(),
		bytes.NewReader(body(object.SHA1, "fetch", "want "+sv.head.String(), "filter blob:none", "done")))
	if packOf(got) != nil {
		t.Errorf("a filter was accepted: %.100q, %v", got, err)
	}
}

func TestNoV2(t *testing.T) {
	sv := start(t, ServerOptions{})
	sv.Inject(Fault{Kind: NoV2})
	dir, err := sv.clone(t)
	if err != nil {
		t.Fatal(err)
	}
	sent, _ := sv.Log().Blobs()
	sameBlobs(t, "v0", sent, blobsIn(t, dir))
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, sv.url()+"/info/refs?service=git-upload-pack", nil)
	req.Header.Set("Git-Protocol", "version=2")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); strings.Contains(string(b), "version 2") ||
		!strings.Contains(string(b), sv.head.String()+" HEAD") {
		t.Errorf("response is not of protocol version 0: %.100q", b)
	}
}

func TestDumb(t *testing.T) {
	sv := start(t, ServerOptions{})
	sv.Inject(Fault{Kind: Dumb})
	dir, err := sv.clone(t)
	if err != nil {
		t.Fatal(err)
	}
	if got := gitIn(t, dir, "rev-parse", "HEAD"); got != sv.head.String() {
		t.Errorf("commit of the clone: got %s", got)
	}
	for _, r := range sv.Log().Requests() {
		if r.Method != http.MethodGet {
			t.Errorf("requests to a dumb server: got %v", r)
		}
	}
	if status, _, err := read(t, sv.url(), fetchOf(sv.blobOf(t))); status != 404 || err != nil {
		t.Errorf("git-upload-pack: got status %d, %v", status, err)
	}
}

func TestPacksThatAreNotWhatTheySeem(t *testing.T) {
	forFormats(t, func(t *testing.T, format object.Format) {
		sv := startFormat(t, format, ServerOptions{})
		id := sv.blobOf(t)
		_, answer, err := read(t, sv.url(), fetchOf(id))
		if err != nil {
			t.Fatal(err)
		}
		whole := packOf(answer)
		goodTrailer := func(pack []byte) bool {
			h := trailerHash(format)
			n := len(pack) - h.Size()
			h.Write(pack[:n])
			return bytes.Equal(h.Sum(nil), pack[n:])
		}
		if !goodTrailer(whole) {
			t.Fatal("the test does not recognize a valid trailer")
		}
		for _, c := range []struct {
			name  string
			fault Fault
			check func(pack []byte) bool
		}{
			{"truncated", Fault{Kind: TruncatedPack, After: 60}, func(p []byte) bool { return bytes.Equal(p, whole[:60]) }},
			{"truncated at once", Fault{Kind: TruncatedPack}, func(p []byte) bool { return len(p) == 0 }},
			{"corrupt", Fault{Kind: CorruptPack, After: 40}, func(p []byte) bool {
				return len(p) == len(whole) && p[40] == whole[40]^0x10 && bytes.Equal(p[41:], whole[41:]) && !goodTrailer(p)
			}},
			{"corrupt, with the right checksum", Fault{Kind: CorruptPack, After: 40, GoodTrailer: true}, func(p []byte) bool {
				return len(p) == len(whole) && p[40] == whole[40]^0x10 && goodTrailer(p)
			}},
			{"another object", Fault{Kind: WrongObject}, func(p []byte) bool {
				c := countPack(format, bytes.NewReader(p), int64(len(p)), nil)
				return c.err == nil && c.objects == 1 && len(c.blobs) == 1 && c.blobs[0] != id && goodTrailer(p)
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				i := sv.Inject(c.fault)
				defer i.Remove()
				status, got, err := read(t, sv.url(), fetchOf(id))
				if status != 200 || err != nil || !bytes.HasSuffix(got, []byte("0000")) {
					t.Errorf("response: got status %d, %v, end %q, want a complete response", status, err, got[max(0, len(got)-10):])
				}
				if !c.check(packOf(got)) {
					t.Errorf("pack of %d bytes does not have the fault; the complete one has %d bytes", len(packOf(got)), len(whole))
				}
				if i.Hits() != 1 {
					t.Errorf("got %d hits", i.Hits())
				}
				// Stock git must also detect the fault.
				if _, err := sv.clone(t); err == nil {
					t.Error("git clone of the faulty pack succeeded")
				}
			})
		}
	})
}

// TestWrongObjectAmongRightOnes checks that only the first of several requested blobs is replaced, and that the log
// lists the blobs that were sent.
func TestWrongObjectAmongRightOnes(t *testing.T) {
	sv := start(t, ServerOptions{})
	a, b := sv.blobOf(t), object.MustID(gitIn(t, sv.dir, "rev-parse", "main:dir2/file2"))
	sv.Inject(Fault{Kind: WrongObject})
	if _, _, err := read(t, sv.url(), bytes.NewReader(fetchBody(object.SHA1, a, b))); err != nil {
		t.Fatal(err)
	}
	sent, total := sv.Log().Blobs()
	if total != 2 || sent[a] != 0 || sent[b] != 1 {
		t.Errorf("sent blobs: got %v", sent)
	}
}

func TestWhichRequestsAFaultIsDoneTo(t *testing.T) {
	sv := start(t, ServerOptions{})
	id := sv.blobOf(t)
	failed := func() string {
		var s strings.Builder
		for range 6 {
			status, _, err := read(t, sv.url(), fetchOf(id))
			if err != nil {
				t.Fatal(err)
			}
			s.WriteByte("-x"[min(1, status/500)])
		}
		return s.String()
	}
	for _, c := range []struct {
		fault Fault
		want  string
	}{
		{Fault{}, "xxxxxx"},
		{Fault{Skip: 2}, "--xxxx"},
		{Fault{Times: 2}, "xx----"},
		{Fault{Skip: 3, Times: 1}, "---x--"},
		{Fault{On: LsRefs}, "------"},
		{Fault{On: Fetch, Times: 1}, "x-----"},
		{Fault{Match: func(r Request) bool { return len(r.Wants) == 1 && r.Wants[0] == id && r.Repo == "a.git" }, Skip: 5},
			"-----x"},
		{Fault{Match: func(r Request) bool { return r.Depth > 0 }}, "------"},
	} {
		c.fault.Kind = Status
		i := sv.Inject(c.fault)
		if got := failed(); got != c.want || i.Hits() != strings.Count(c.want, "x") {
			t.Errorf("%+v: got %s with %d hits, want %s", c.fault, got, i.Hits(), c.want)
		}
		i.Remove()
	}
}

func TestSeveralFaultsAtOnce(t *testing.T) {
	sv := start(t, ServerOptions{})
	id := sv.blobOf(t)
	sv.Inject(Fault{Kind: RequireAuth, Pass: "p"})
	sv.Inject(Fault{Kind: Cut, After: 30, On: Fetch})
	if _, got, err := read(t, sv.url(), fetchOf(id), "Authorization", "Bearer p"); err == nil || len(got) != 30 {
		t.Errorf("got %d bytes, %v, want 30 bytes and a closed connection", len(got), err)
	}
}

func TestDown(t *testing.T) {
	sv := start(t, ServerOptions{})
	url := sv.url()
	sv.Down()
	if _, _, err := read(t, url, fetchOf(sv.blobOf(t))); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want refusal", err)
	}
	if err := sv.Up(); err != nil {
		t.Fatal(err)
	}
	if sv.url() != url {
		t.Errorf("up again at %s, was %s", sv.url(), url)
	}
	if _, err := sv.clone(t); err != nil {
		t.Error(err)
	}
}

func TestInjectPanicsAtWhatCannotBeDone(t *testing.T) {
	sv := start(t, ServerOptions{})
	defer func() {
		if recover() == nil {
			t.Error("an unknown fault caused no panic")
		}
	}()
	sv.Inject(Fault{Kind: "nonsense"})
}
