package transport

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// forEachCarrier runs a test with every transport to the same directory of repositories.
func forEachCarrier(t *testing.T, root string, test func(t *testing.T, base string)) {
	t.Run("http", func(t *testing.T) { test(t, serveWeb(t, root, false).URL) })
	t.Run("file", func(t *testing.T) { test(t, "file://"+root) })
	t.Run("path", func(t *testing.T) { test(t, root) })
	t.Run("git", func(t *testing.T) { test(t, serveGitDaemon(t, root)) })
	t.Run("ssh", func(t *testing.T) { test(t, serveSSH(t)+root) })
}

func TestDialogue(t *testing.T) {
	root := t.TempDir()
	repos := map[string]fixture{}
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		repos[f.String()] = makeRepo(t, filepath.Join(root, f.String()), f)
	}
	emptyRepo(t, filepath.Join(root, "empty"), object.SHA1)
	forEachCarrier(t, root, func(t *testing.T, base string) {
		for name, fx := range repos {
			if fx.format == object.SHA256 && !strings.HasPrefix(base, "http:") && base != root {
				continue // no transport looks at ids
			}
			t.Run(name, func(t *testing.T) {
				r := openRemote(t, base+"/"+name, Options{})
				testCapabilities(t, r, fx)
				testRefs(t, r, fx)
				testFetch(t, r, fx)
				testNotOurRef(t, r, fx)
				testObjectInfo(t, r, fx)
				testEarlyClose(t, r, fx)
				testCancel(t, r, fx)
				testConcurrent(t, r, fx)
			})
		}
		t.Run("empty", func(t *testing.T) {
			r := openRemote(t, base+"/empty", Options{})
			refs, err := r.Refs(t.Context(), []string{"HEAD"})
			if err != nil || len(refs.List) != 0 || refs.Unborn != "refs/heads/main" {
				t.Errorf("Refs = %+v, %v", refs, err)
			}
		})
		t.Run("absent", func(t *testing.T) {
			r := openRemote(t, base+"/absent", Options{Retries: 3})
			if _, err := r.Capabilities(t.Context()); !errors.Is(err, ErrNotFound) {
				t.Errorf("Capabilities = %v, want ErrNotFound", err)
			}
		})
	})
}

func testCapabilities(t *testing.T, r *Remote, fx fixture) {
	c, err := r.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Format != fx.format || !c.Filter || !c.Shallow || !c.ObjectInfo || !strings.HasPrefix(c.Agent, "git/") {
		t.Errorf("Capabilities = %+v", c)
	}
}

func testRefs(t *testing.T, r *Remote, fx fixture) {
	refs, err := r.Refs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Ref{
		{Name: "HEAD", ID: fx.head, Target: "refs/heads/main"},
		{Name: "refs/heads/main", ID: fx.head},
		{Name: "refs/heads/topic", ID: fx.first},
		{Name: "refs/tags/light", ID: fx.first},
		{Name: "refs/tags/v1", ID: fx.tag, Peeled: fx.head},
	}
	if !reflect.DeepEqual(refs.List, want) || refs.Unborn != "" {
		t.Errorf("Refs = %+v", refs)
	}
	refs, err = r.Refs(t.Context(), []string{"refs/tags/", "HEAD"})
	if err != nil || len(refs.List) != 3 {
		t.Errorf("Refs of tags and HEAD = %+v, %v", refs, err)
	}
}

func testFetch(t *testing.T, r *Remote, fx fixture) {
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}, Depth: 1, Filter: "blob:none"})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Shallow) != 1 || res.Shallow[0] != fx.head {
		t.Errorf("shallow = %v, want %v", res.Shallow, fx.head)
	}
	if ids := unpack(t, fx.format, res.Pack); len(ids) != 3 || !ids[fx.head] { // the pack has a commit and two trees
		t.Errorf("blobless fetch of depth 1 fetched %d objects", len(ids))
	}
	wants := make([]object.ID, 0, len(fx.blobs))
	for _, id := range fx.blobs {
		wants = append(wants, id)
	}
	res, err = r.Fetch(t.Context(), FetchRequest{Wants: wants})
	if err != nil {
		t.Fatal(err)
	}
	ids := unpack(t, fx.format, res.Pack)
	if len(ids) != len(wants) {
		t.Errorf("%d wants fetched %d objects", len(wants), len(ids))
	}
	for _, id := range wants {
		if !ids[id] {
			t.Errorf("wanted object %s was not fetched", id)
		}
	}
	if n, err := res.Pack.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read behind the end = %d, %v", n, err)
	}
	for _, req := range []FetchRequest{{}, {Wants: []object.ID{{}}}, {Wants: wants, Filter: "a\nb"},
		{Wants: wants, Depth: -1}} {
		if res, err := r.Fetch(t.Context(), req); err == nil {
			res.Pack.Close()
			t.Errorf("Fetch(%+v) succeeded", req)
		}
	}
}

func testNotOurRef(t *testing.T, r *Remote, fx fixture) {
	no := object.MustID(strings.Repeat("1234", fx.format.Size()/2))
	_, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head, no}})
	var refused NotOurRef
	if !errors.As(err, &refused) || refused.ID != no {
		t.Errorf("Fetch of an unknown id: got %v", err)
	}
}

func testObjectInfo(t *testing.T, r *Remote, fx fixture) {
	no := object.MustID(strings.Repeat("1234", fx.format.Size()/2))
	sizes, err := r.ObjectInfo(t.Context(), []object.ID{fx.blobs["noise"], no, fx.blobs["dir/file7"]})
	if want := []int64{300_000, -1, int64(len("line 2 of file 7\n") * 57)}; err != nil || !reflect.DeepEqual(sizes, want) {
		t.Errorf("ObjectInfo = %v, %v, want %v", sizes, err, want)
	}
}

func testEarlyClose(t *testing.T, r *Remote, fx fixture) {
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Pack, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	res.Pack.Close()
	res.Pack.Close()
	if _, err := io.Copy(io.Discard, res.Pack); err == nil {
		t.Error("a pack closed early reads to its end")
	}
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Errorf("fetch after an early close: %v", err)
	}
}

func testCancel(t *testing.T, r *Remote, fx fixture) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	res, err := r.Fetch(ctx, FetchRequest{Wants: []object.ID{fx.head}})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Pack.Close()
	cancel(cause)
	// Bytes that are buffered can still be read.
	if _, err := io.Copy(io.Discard, res.Pack); err != nil && !errors.Is(err, cause) && !errors.Is(err, context.Canceled) {
		t.Errorf("Read after cancel: got %v", err)
	}
	if _, err := r.Fetch(ctx, FetchRequest{Wants: []object.ID{fx.head}}); !errors.Is(err, cause) {
		t.Errorf("Fetch after cancel: got %v", err)
	}
}

func testConcurrent(t *testing.T, r *Remote, fx fixture) {
	before := r.Stats()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for _, id := range []object.ID{fx.blobs["noise"], fx.blobs["dir/file1"], fx.blobs["dir/file2"]} {
				res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{id}})
				if err != nil {
					t.Error(err)
					return
				}
				n, err := io.Copy(io.Discard, res.Pack)
				if err != nil || n < 32 {
					t.Errorf("read the pack: got %d bytes, %v", n, err)
				}
				res.Pack.Close()
			}
		})
	}
	wg.Wait()
	after := r.Stats()
	if n := after.Requests - before.Requests; n != 9 {
		t.Errorf("9 fetches sent %d requests", n)
	}
	if n := after.Connections - before.Connections; n > 3 {
		t.Errorf("3 fetches at once opened %d connections", n)
	}
	if after.BytesIn <= before.BytesIn || after.BytesOut <= before.BytesOut ||
		after.RoundTrips != after.Requests+after.Connections {
		t.Errorf("Stats = %+v", after)
	}
}

func TestKeptLane(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	forEachCarrier(t, root, func(t *testing.T, base string) {
		r := openRemote(t, base+"/r", Options{})
		if _, err := r.Refs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for _, id := range []object.ID{fx.blobs["noise"], fx.blobs["dir/file1"]} {
			res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{id}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, res.Pack); err != nil {
				t.Fatal(err)
			}
			res.Pack.Close()
		}
		if s := r.Stats(); s.Connections != 1 || s.Requests > 4 {
			t.Errorf("statistics after capabilities, refs and two fetches: got %+v, want one connection", s)
		}
		l, ok := r.carrier.(*lanes)
		if !ok {
			return
		}
		l.idle[0].conn.abort() // as if the connection had broken
		if _, err := r.ObjectInfo(t.Context(), []object.ID{fx.head}); err != nil {
			t.Errorf("fetch with a broken kept connection: %v", err)
		}
		if s := r.Stats(); s.Connections != 2 {
			t.Errorf("Connections = %d, want 2", s.Connections)
		}
		l.expire(l.idle[0])
		if _, err := r.ObjectInfo(t.Context(), []object.ID{fx.head}); err != nil || len(l.idle) != 1 {
			t.Errorf("fetch after the expiry of kept connections: got %v, %d idle connections", err, len(l.idle))
		}
	})
}

func TestCloseEndsExchanges(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	forEachCarrier(t, root, func(t *testing.T, base string) {
		r := openRemote(t, base+"/r", Options{})
		res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}})
		if err != nil {
			t.Fatal(err)
		}
		defer res.Pack.Close()
		begun := time.Now()
		r.Close()
		if d := time.Since(begun); d > await.Patience {
			t.Errorf("Close took %v", d)
		}
		if _, err := io.Copy(io.Discard, res.Pack); err != nil && !errors.Is(err, errClosed) {
			t.Errorf("Read after Close: got %v", err)
		}
		if _, err := r.Refs(t.Context(), nil); !errors.Is(err, errClosed) {
			t.Errorf("Refs after Close: got %v", err)
		}
	})
}

// TestRefsAreFresh checks that a kept connection returns changes of the repository, although the server process may
// have cached refs and objects.
func TestRefsAreFresh(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	forEachCarrier(t, root, func(t *testing.T, base string) {
		r := openRemote(t, base+"/r", Options{})
		name := "refs/heads/new-" + filepath.Base(t.Name())
		for n, id := range []object.ID{{}, fx.first, fx.head} {
			if !id.IsZero() {
				git(t, fx.dir, "", "update-ref", name, id.String())
			}
			refs, err := r.Refs(t.Context(), []string{name})
			if err != nil {
				t.Fatal(err)
			}
			if !id.IsZero() { // the object did not exist when the connection was opened
				blob := object.MustID(git(t, fx.dir, name+id.String(), "hash-object", "-w", "--stdin"))
				res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{blob}})
				if err != nil {
					t.Fatal(err)
				}
				if !unpack(t, fx.format, res.Pack)[blob] {
					t.Errorf("new object %s was not fetched", blob)
				}
			}
			if len(refs.List) != min(n, 1) || n > 0 && refs.List[0].ID != id {
				t.Errorf("listing %d: got %+v, want %v", n, refs.List, id)
			}
		}
	})
}

// TestRefusedFilter checks that a fetch succeeds without its filter if the server advertises filters but refuses this
// one, and that later requests do not use it.
func TestRefusedFilter(t *testing.T) {
	for _, key := range []string{"uploadpackfilter.allow", "uploadpackfilter.blob:none.allow"} {
		root := t.TempDir()
		fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
		git(t, fx.dir, "", "config", key, "false")
		forEachCarrier(t, root, func(t *testing.T, base string) {
			r := openRemote(t, base+"/r", Options{})
			if caps, err := r.Capabilities(t.Context()); err != nil || !caps.Filter {
				t.Fatalf("Capabilities before the refusal = %+v, %v, want filters", caps, err)
			}
			for range 2 {
				res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}, Depth: 1, Filter: filterBlobs})
				if err != nil {
					t.Fatalf("fetch with a refused filter: %v", err)
				}
				if ids := unpack(t, fx.format, res.Pack); !res.Unfiltered || len(ids) <= len(fx.blobs) {
					t.Errorf("fetch with a refused filter: unfiltered %t, %d objects, want the commit with its %d blobs",
						res.Unfiltered, len(ids), len(fx.blobs))
				}
			}
			if caps, err := r.Capabilities(t.Context()); err != nil || caps.Filter {
				t.Errorf("Capabilities after the refusal = %+v, %v, want no filters", caps, err)
			}
			missing := object.MustID(strings.Repeat("1", 40))
			if _, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{missing}, Filter: filterBlobs}); !errors.As(err,
				new(NotOurRef)) {
				t.Errorf("fetch of a missing object with a refused filter: got %v, want NotOurRef", err)
			}
		})
	}
}
