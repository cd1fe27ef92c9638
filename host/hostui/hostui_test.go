package hostui

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/fetchmap"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
)

// tree returns a directory with wide subdirectories in each of deep levels.
func tree(name string, wide, deep int) fetchmap.MapDir {
	d := fetchmap.MapDir{Name: name, Files: 1, Bytes: 10, Requests: 3}
	for i := range wide {
		if deep == 0 {
			break
		}
		below := tree(fmt.Sprintf("d%d-%s", i, strings.Repeat("x", i)), wide, deep-1)
		d.Files, d.Fetched, d.Bytes, d.Dirs = d.Files+below.Files, d.Fetched+below.Fetched, d.Bytes+below.Bytes,
			append(d.Dirs, below)
	}
	d.Fetched = d.Files / 2
	return d
}

// TestViewStaysInside checks that boxes are inside the map, inner boxes inside their groups, and parts of boxes inside
// the box; that keys are unique; and that labels fit.
func TestViewStaysInside(t *testing.T) {
	for _, size := range [][2]float64{{200, 200}, {340, 260}, {1000, 600}, {5000, 2500}} {
		for _, bytes := range []bool{false, true} {
			r := request{mount: "/m", bytes: bytes, width: size[0], height: size[1]}
			v := r.view(sample{Map: fetchmap.Map{Known: true, Seconds: 1, Tree: tree("", 6, 3)}})
			if len(v.Boxes) < 6 || len(v.Boxes) > fetchmap.MaxBoxes || len(v.Rows) != 6 {
				t.Fatalf("view of %v: %d boxes, %d rows", size, len(v.Boxes), len(v.Rows))
			}
			keys := map[string]bool{}
			for _, b := range v.Boxes {
				if keys[b.Key] {
					t.Errorf("two boxes have the key %q", b.Key)
				}
				keys[b.Key] = true
				if b.X < 0 || b.Y < 0 || b.X+b.W > size[0]+0.2 || b.Y+b.H > size[1]+0.2 || b.W < 0 || b.H < 0 {
					t.Errorf("box is outside of %v: %+v", size, b)
				}
				if b.Fetched+b.Coming > b.H+0.2 || b.ComingY() < b.Y-0.3 {
					t.Errorf("parts of a box are higher than the box: %+v", b)
				}
				if float64(len(b.Label))*letterWidth > b.W+letterWidth {
					t.Errorf("label is wider than its box: %+v", b)
				}
			}
		}
	}
}

// TestLinksOfView checks that links lead to the directories of boxes, even if names contain characters that have a
// meaning in URLs or HTML.
func TestLinksOfView(t *testing.T) {
	r := request{mount: "/m", path: "a", width: 1000, height: 600}
	v := r.view(sample{Map: fetchmap.Map{Known: true, Seconds: 2, Tree: fetchmap.MapDir{Files: 40, Dirs: []fetchmap.MapDir{
		{Name: "b&c/d?\"<e", Files: 30, Fetched: 30, Requests: 50, Waited: 1}, {Own: true, Files: 6},
		{More: 3, Files: 4, Unlisted: true}}}}})
	if len(v.Rows) != 3 || len(v.Boxes) != 3 {
		t.Fatalf("view: %d rows and %d boxes, want 3", len(v.Rows), len(v.Boxes))
	}
	to, err := url.Parse(v.Rows[0].Link)
	if err != nil || to.Query().Get("path") != `a/b&c/d?"<e` || to.Query().Get("mount") != "/m" ||
		v.Boxes[0].Link != v.Rows[0].Link {
		t.Errorf("link of a directory: got %q, %v", v.Rows[0].Link, err)
	}
	if v.Rows[1].Link+v.Rows[2].Link+v.Boxes[1].Link != "" {
		t.Errorf("entries that are no directories have links: %+v", v.Rows)
	}
	if got := v.Rows[0]; got.Fetched != "30 (100 %)" || got.Requests != "25" || got.Waited != "0.5" ||
		v.Boxes[0].Heat != 2 {
		t.Errorf("row: got %+v, heat %d", got, v.Boxes[0].Heat)
	}
	if v.Rows[1].Name != "(its files)" || v.Rows[2].Name != "(3 more)" || v.Rows[2].Files != "4 and more" {
		t.Errorf("names: %+v", v.Rows)
	}
}

func TestParse(t *testing.T) {
	for query, want := range map[string]request{
		"":                                {width: defaultWidth, height: defaultHeight},
		"mount=/m&path=/a/../b/&by=bytes": {mount: "/m", path: "b", bytes: true, width: defaultWidth, height: defaultHeight},
		"width=1&height=999999999":        {width: minSide, height: maxSide},
		"width=-5&height=x&path=../..":    {width: minSide, height: defaultHeight},
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if got := parse(q); got != want {
			t.Errorf("parse %q: got %+v, want %+v", query, got, want)
		}
	}
}

func TestGuard(t *testing.T) {
	g := guard{hash: sha256.Sum256([]byte("secret")), who: "ann"}
	for header, ok := range map[string]bool{"Bearer secret": true, "Bearer secret ": false, "Bearer ": false, "": false,
		"secret": false, "Basic secret": false} {
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		token, err := g.Git(t.Context(), r, records.Repo{}, records.ReadScope)
		if ok != (err == nil) || ok && token.Scope != records.ReadScope {
			t.Errorf("%q: got %+v, %v", header, token, err)
		}
		if _, err := g.Admin(t.Context(), r, "", records.WriteScope); err == nil {
			t.Errorf("%q: may write", header)
		}
	}
	if _, err := g.Any(t.Context(), &http.Request{Header: http.Header{}}); !errors.Is(err, access.ErrInvalid) {
		t.Errorf("no token: got %v", err)
	}
}

// fakeDaemon sends maps until its context ends, and then one error.
type fakeDaemon struct {
	mu      sync.Mutex
	streams int
	ended   int
	maps    chan control.Trace
	err     error
}

func (d *fakeDaemon) Trace(ctx context.Context, r control.TraceRequest, each func(control.Trace) error) error {
	d.mu.Lock()
	d.streams++
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ended++
	}()
	for {
		select {
		case m, ok := <-d.maps:
			if !ok {
				return d.err
			}
			if err := each(m); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *fakeDaemon) Mounts(context.Context, control.MountsRequest) (control.Status, error) {
	return control.Status{Mounts: []control.MountStatus{{Dir: "/m", State: control.StateMounted}}}, nil
}

func (d *fakeDaemon) counts() (streams, ended int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.streams, d.ended
}

func newPage(t *testing.T, d *fakeDaemon) (*Page, *httptest.Server) {
	t.Helper()
	p, err := New(Options{State: t.TempDir(), Log: zap.NewNop(), Mounts: func(context.Context) ([]Mount, bool, error) {
		return []Mount{{control.MountStatus{Dir: "/m", ID: "m", State: control.StateMounted}, d}}, true, nil
	}}, &net.TCPAddr{Port: 7})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return p, s
}

// TestFeedIsSharedAndEnds checks that browsers that show the same directory share one stream of the daemon, and that
// this stream ends when the last browser disconnects.
func TestFeedIsSharedAndEnds(t *testing.T) {
	d := &fakeDaemon{maps: make(chan control.Trace, 10)}
	p, s := newPage(t, d)
	d.maps <- control.Trace{Map: &fetchmap.Map{Known: true, Seconds: 1, Tree: tree("", 2, 1)}}
	follow := func() *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+eventsPath+"?mount=/m", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(&http.Cookie{Name: "artifactfs-ui-7", Value: p.Token()})
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("events: got %s", res.Status)
		}
		buf := make([]byte, 6)
		if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != "data: " {
			t.Fatalf("events: got %q, %v", buf, err)
		}
		return res
	}
	first, second := follow(), follow()
	if streams, ended := d.counts(); streams != 1 || ended != 0 {
		t.Errorf("two browsers: %d streams, %d have ended", streams, ended)
	}
	first.Body.Close()
	second.Body.Close()
	await.Until(t, "the stream of the daemon has ended", func() bool { _, ended := d.counts(); return ended == 1 })
	d.maps <- control.Trace{Map: &fetchmap.Map{Known: true, Seconds: 1, Tree: tree("", 2, 1)}}
	follow().Body.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if streams, ended := d.counts(); streams != 2 || ended != 2 {
		t.Errorf("after the end of the page: %d streams, %d have ended", streams, ended)
	}
	if _, err := p.feeds.use(Mount{Daemon: d}, feedKey{}); err == nil {
		t.Error("a page that was closed starts a feed")
	}
}

// TestFeedSaysWhyItEnds checks that the page shows a message when the mount ends or its daemon is too old.
func TestFeedSaysWhyItEnds(t *testing.T) {
	for want, d := range map[string]*fakeDaemon{
		"The mount has ended.":        {},
		"not mounted any more":        {err: &control.Error{Cause: "not mounted any more", Hint: "mount again"}},
		"artifactfs daemon --upgrade": {maps: make(chan control.Trace, 1)},
	} {
		if d.maps == nil {
			d.maps = make(chan control.Trace)
		} else {
			d.maps <- control.Trace{}
		}
		close(d.maps)
		p, _ := newPage(t, d)
		f, err := p.feeds.use(Mount{Daemon: d}, feedKey{mount: "/m"})
		if err != nil {
			t.Fatal(err)
		}
		await.Until(t, "the feed has ended", func() bool { s, _ := f.sample(); return s.Problem != "" })
		if s, _ := f.sample(); !strings.Contains(s.Problem, want) {
			t.Errorf("problem: got %q, want %q", s.Problem, want)
		}
		f.release()
		p.Close()
	}
}

func TestFeedsAreLimited(t *testing.T) {
	d := &fakeDaemon{maps: make(chan control.Trace)}
	p, _ := newPage(t, d)
	defer p.Close()
	for i := range maxFeeds + 1 {
		_, err := p.feeds.use(Mount{Daemon: d}, feedKey{path: fmt.Sprint(i)})
		if (err == nil) != (i < maxFeeds) {
			t.Errorf("feed %d: got %v", i, err)
		}
	}
}

// TestOtherUsersAreRefused checks that connections of other users over the loopback device get no answer, even with the
// right token.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a program as another user")
	}
	p, s := newPage(t, &fakeDaemon{})
	defer p.Close()
	s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, p) }()
	get := func(uid uint32) string {
		t.Helper()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		cmd := exec.Command("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port+
			`; printf 'GET / HTTP/1.0\r\nCookie: artifactfs-ui-7=`+p.Token()+`\r\n\r\n' >&3; cat <&3`)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, _ := cmd.Output() // an error is ignored, because some programs report a closed connection as an error
		return string(out)
	}
	if got := get(0); !strings.Contains(got, "Sessions of this host") {
		t.Errorf("answer for the same user: %.300s", got)
	}
	if got := get(65534); got != "" {
		t.Errorf("answer for another user: %.300s", got)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
