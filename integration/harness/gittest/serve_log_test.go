package gittest

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func sameBlobs(t *testing.T, what string, got, want map[object.ID]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: the log has %d blobs and the client %d, want the same blobs once each", what, len(got), len(want))
	}
}

// TestLogIsTheTruthOfClones checks that the log of a clone by stock git lists the objects that the clone has.
func TestLogIsTheTruthOfClones(t *testing.T) {
	forFormats(t, func(t *testing.T, format object.Format) {
		sv := startFormat(t, format, ServerOptions{})
		all := blobsIn(t, sv.dir)
		for _, c := range []struct {
			name    string
			args    []string
			blobs   int // number of sent blobs; -1 for the number that the clone has
			depth   int
			filter  string
			version int
		}{
			{"everything", nil, len(all), 0, "", 2},
			{"blobless", []string{"--filter=blob:none", "--no-checkout"}, 0, 0, "blob:none", 2},
			{"shallow", []string{"--depth=1"}, 40, 1, "", 2},
			{"shallow and blobless", []string{"--depth=2", "--filter=blob:none", "--no-checkout"}, 0, 2, "blob:none", 2},
			{"small blobs", []string{"--filter=blob:limit=2000", "--no-checkout"}, -1, 0, "blob:limit=2000", 2},
			{"protocol v0", []string{"-c", "protocol.version=0"}, len(all), 0, "", 0},
			{"shallow by v0", []string{"-c", "protocol.version=0", "--depth=1"}, 40, 1, "", 0},
		} {
			t.Run(c.name, func(t *testing.T) {
				sv.Log().Reset()
				dir := filepath.Join(t.TempDir(), "c")
				gitIn(t, "", append(append([]string{"clone", "-q"}, c.args...), sv.url(), dir)...)
				have := blobsIn(t, dir)
				sent, total := sv.Log().Blobs()
				sameBlobs(t, c.name, sent, have)
				if c.blobs >= 0 && total != c.blobs {
					t.Errorf("sent blobs: got %d, want %d", total, c.blobs)
				}
				fetches := sv.Log().Fetches()
				last := fetches[len(fetches)-1]
				objects := strings.Count(gitIn(t, dir, "cat-file", "--batch-all-objects", "--batch-check"), "\n") + 1
				if last.Objects != objects || last.Blobs != total || last.PackErr != "" {
					t.Errorf("log: got %d objects, %d blobs, error %q; the client has %d and %d", last.Objects, last.Blobs,
						last.PackErr, objects, total)
				}
				if last.Depth != c.depth || last.Filter != c.filter || last.Version != c.version || last.Status != 200 ||
					!slices.Contains(last.Wants, sv.head) {
					t.Errorf("log entry: got %v (version %d, depth %d, filter %q, wants %v)", last, last.Version, last.Depth,
						last.Filter, last.Wants)
				}
				if last.At.IsZero() || last.FirstByte <= 0 || last.Duration < last.FirstByte || last.BytesIn == 0 ||
					last.BytesOut == 0 || last.Repo != "a.git" {
					t.Errorf("log entry is implausible: %+v", last)
				}
			})
		}
	})
}

func TestLogOfSingleBlobs(t *testing.T) {
	forFormats(t, func(t *testing.T, format object.Format) {
		sv := startFormat(t, format, ServerOptions{})
		dir := filepath.Join(t.TempDir(), "c")
		gitIn(t, "", "clone", "-q", "--filter=blob:none", "--no-checkout", sv.url(), dir)
		ids := slices.SortedFunc(maps.Keys(blobsIn(t, sv.dir)), object.ID.Compare)
		// the body of the last request has more than 1 KiB, so git compresses it
		for _, n := range []int{1, 2, len(ids)} {
			sv.Log().Reset()
			args := []string{"-c", "fetch.negotiationAlgorithm=noop", "fetch", "-q", "--no-tags", "--no-write-fetch-head",
				"--filter=blob:none", "origin"}
			want := map[object.ID]int{}
			for _, id := range ids[:n] {
				args, want[id] = append(args, id.String()), 1
			}
			gitIn(t, dir, args...)
			sent, total := sv.Log().Blobs()
			asked := map[object.ID]int{}
			for _, r := range sv.Log().Fetches() {
				for _, id := range r.Wants {
					asked[id]++
				}
			}
			if n < len(ids) {
				sameBlobs(t, "sent", sent, want)
				sameBlobs(t, "wanted", asked, want)
				if total != n {
					t.Errorf("all sent blobs: got %d, want %d", total, n)
				}
			} else if total == 0 || len(sent) != total {
				t.Errorf("blobs of the other requests: got %d, %d different", total, len(sent))
			}
		}
	})
}

// TestLogOfAThinPack checks that blobs in a thin pack are counted, whose deltas have bases that are not in the pack.
func TestLogOfAThinPack(t *testing.T) {
	sv := start(t, ServerOptions{Config: []string{"http.receivepack=true"}})
	work := filepath.Join(t.TempDir(), "w")
	gitIn(t, "", "clone", "-q", sv.url(), work)
	path := filepath.Join(work, "noise")
	write := func(content []byte) {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		gitIn(t, work, "add", "noise")
		gitIn(t, work, "commit", "-q", "-m", "c")
		gitIn(t, work, "push", "-q", "origin", "main")
	}
	content := noise(100_000)
	write(content)
	dir := filepath.Join(t.TempDir(), "c")
	gitIn(t, "", "clone", "-q", sv.url(), dir)
	before := blobsIn(t, dir)
	write(append(content, "one more line\n"...))
	sv.Log().Reset()
	gitIn(t, dir, "fetch", "-q")
	after := blobsIn(t, dir)
	maps.DeleteFunc(after, func(id object.ID, _ int) bool { return before[id] > 0 })
	sent, _ := sv.Log().Blobs()
	sameBlobs(t, "thin", sent, after)
	r := sv.Log().Fetches()
	if last := r[len(r)-1]; len(sent) != 1 || last.Haves == 0 || last.Objects != 3 || last.BytesOut > 10_000 {
		t.Errorf("the response has no thin pack: %v", last)
	}
}

func TestLogOfRawRequests(t *testing.T) {
	forFormats(t, func(t *testing.T, format object.Format) {
		sv := startFormat(t, format, ServerOptions{Config: []string{"transfer.advertiseObjectInfo=true"}})
		id := object.MustID(gitIn(t, sv.dir, "rev-parse", "main:dir1/file1"))
		size := gitIn(t, sv.dir, "cat-file", "-s", id.String())
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		z.Write(fetchBody(format, id))
		z.Close()
		for _, c := range []struct {
			name   string
			body   io.Reader
			header []string
			want   Request
			answer string
		}{
			{"plain", bytes.NewReader(fetchBody(format, id)), nil, Request{Command: Fetch, Objects: 1, Blobs: 1}, "PACK"},
			{"gzip", &zipped, []string{"Content-Encoding", "gzip"}, Request{Command: Fetch, Objects: 1, Blobs: 1}, "PACK"},
			{"chunked", io.MultiReader(bytes.NewReader(fetchBody(format, id))), nil,
				Request{Command: Fetch, Objects: 1, Blobs: 1}, "PACK"},
			{"object-info", bytes.NewReader(body(format, "object-info", "size", "oid "+id.String())), nil,
				Request{Command: ObjectInfo}, id.String() + " " + size},
			{"ls-refs", bytes.NewReader(body(format, "ls-refs", "ref-prefix refs/heads/", "ref-prefix refs/tags/")), nil,
				Request{Command: LsRefs}, sv.head.String() + " refs/heads/main"},
		} {
			sv.Log().Reset()
			sent := 0
			if b, ok := c.body.(interface{ Len() int }); ok {
				sent = b.Len()
			}
			status, got, err := read(t, sv.url(), c.body, c.header...)
			if err != nil || status != 200 || !strings.Contains(string(got), c.answer) {
				t.Fatalf("%s: got status %d, %v, answer %.80q without %q", c.name, status, err, got, c.answer)
			}
			all := sv.Log().Requests()
			if len(all) != 1 {
				t.Fatalf("%s: got %d requests", c.name, len(all))
			}
			r := all[0]
			if r.Command != c.want.Command || r.Objects != c.want.Objects || r.Blobs != c.want.Blobs ||
				r.BytesOut != int64(len(got)) || sent > 0 && r.BytesIn != int64(sent) {
				t.Errorf("%s: got log entry %v and %d bytes", c.name, r, len(got))
			}
			if n := len(r.Wants); r.Command != LsRefs && (n != 1 || r.Wants[0] != id) ||
				r.Command == LsRefs && len(r.Prefixes) != 2 {
				t.Errorf("%s: got wants %v, prefixes %v", c.name, r.Wants, r.Prefixes)
			}
		}
		if status, _, err := read(t, sv.url(), strings.NewReader("no gzip"), "Content-Encoding", "gzip"); status != 400 ||
			err != nil {
			t.Errorf("a body that is not gzip: got status %d, %v", status, err)
		}
	})
}

func TestRoundTripsAreConnectionsAndRequests(t *testing.T) {
	const rtt = 60 * time.Millisecond
	sv := start(t, ServerOptions{RTT: rtt})
	id := object.MustID(gitIn(t, sv.dir, "rev-parse", "main:dir1/file1"))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func() {
		resp, err := post(t, client, sv.url(), bytes.NewReader(fetchBody(object.SHA1, id)))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	takes(t, "a first request", 2*rtt, 7*rtt/2, func() {
		client.CloseIdleConnections()
		ask()
	})
	takes(t, "another on the same connection", rtt, 5*rtt/2, ask)
	sv.Log().Reset()
	client.CloseIdleConnections()
	for range 4 {
		ask()
	}
	if l := sv.Log(); l.Connections() != 1 || l.RoundTrips() != 5 || len(l.Requests()) != 4 {
		t.Errorf("got %d connections and %d round trips, want 1 and 5\n%s", l.Connections(), l.RoundTrips(), l)
	}
	if table := sv.Log().String(); !strings.Contains(table,
		"4 requests on 1 connections, 5 round trips: 4 wants, 4 objects, 4 blobs") {
		t.Errorf("the table has no sums:\n%s", table)
	}
	sv.SetRTT(0)
	takes(t, "a request without delay", 0, rtt-time.Millisecond, ask)
}

func TestEachHearsOfEveryRequestOnce(t *testing.T) {
	var heard, blobs atomic.Int64
	sv := start(t, ServerOptions{Each: func(r Request) {
		heard.Add(1)
		blobs.Add(int64(r.Blobs))
	}})
	gitIn(t, "", "clone", "-q", sv.url(), filepath.Join(t.TempDir(), "c"))
	_, total := sv.Log().Blobs()
	n := int64(len(sv.Log().Requests()))
	await.Until(t, "Each was called for all requests",
		func() bool { return heard.Load() == n && blobs.Load() == int64(total) })
}
