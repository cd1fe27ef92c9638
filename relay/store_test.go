package relay

import (
	"cmp"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/s3test"
	"github.com/artifactfs/artifactfs/relay/packs"
)

// second starts another relay with the same object store and an empty local disk.
func (w *world) second() {
	w.t.Helper()
	w.stop()
	w.o.Data = w.t.TempDir()
	w.start()
}

// cloned makes a lazy clone through the relay and compares it, within a time that leaves no room for waiting for a
// broken store. The first clone of a world shows how long a clone takes on this machine.
func (w *world) cloned() {
	w.t.Helper()
	start := time.Now()
	dir, err := w.lazy()
	if err != nil {
		w.t.Fatal(err)
	}
	took := time.Since(start)
	w.first = cmp.Or(w.first, took)
	if took > 15*time.Second+3*w.first {
		w.t.Errorf("clone took %s, the first one %s", took, w.first)
	}
	w.compare(dir, w.commit)
}

// Relays that share an object store fetch everything once, whatever the kind of the store.
func TestObjectStore(t *testing.T) {
	s3 := s3test.Start(t)
	for name, at := range map[string]string{"directory": t.TempDir(), "s3": s3.URL("relay")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Objects: at})
			w.cloned()
			w.second() // the end of the first relay waits for its uploads
			w.server.Log().Reset()
			w.cloned()
			if n := w.sentOnce(); n != 0 {
				t.Errorf("%d fetches by the second relay, want none:\n%s", n, w.server.Log())
			}
			if n := w.relay.shelf.Stats.Loaded.Load(); n != 3 { // snap, sizes and one group
				t.Errorf("%d files were loaded from the store, want 3", n)
			}
			w.second()
			w.server.Log().Reset()
			if n := w.readOne(); n == 0 || w.relay.shelf.Stats.Ranges.Load() == 0 {
				t.Errorf("read of one blob: got %d bytes, %d ranges", n, w.relay.shelf.Stats.Ranges.Load())
			}
			if n := w.sentOnce(); n != 0 {
				t.Errorf("%d fetches for one blob, want none:\n%s", n, w.server.Log())
			}
		})
	}
}

// readOne fetches the newest commit as a mount does, and then one blob. It returns the length of the answer with the
// blob.
func (w *world) readOne() int64 {
	w.t.Helper()
	var n int64
	for _, what := range []string{"snap", "blob"} {
		req, err := http.NewRequest(http.MethodPost, w.url()+"/git-upload-pack", strings.NewReader(fetchOf(what, w)))
		if err != nil {
			w.t.Fatal(err)
		}
		req.Header.Set("Git-Protocol", "version=2")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			w.t.Fatal(err)
		}
		text := new(strings.Builder)
		if err := res.Write(text); err != nil || res.StatusCode != http.StatusOK {
			w.t.Errorf("fetch of a %s: status %d, %v", what, res.StatusCode, err)
		}
		res.Body.Close()
		n = int64(text.Len())
	}
	return n
}

// Whatever is wrong with an S3 service, clones are right.
func TestObjectStoreFails(t *testing.T) {
	s3 := s3test.Start(t)
	front := s3test.NewFront(t, s3)
	w := newWorld(t, Options{Objects: front.StoreURL("relay")})
	w.cloned()
	for name, fault := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"refuses": func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(http.StatusForbidden); return true },
		"fails": func(rw http.ResponseWriter, _ *http.Request) bool {
			rw.WriteHeader(http.StatusInternalServerError)
			return true
		},
		"is full": func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				rw.WriteHeader(http.StatusInsufficientStorage)
				return true
			}
			if r.Method == http.MethodGet {
				rw.WriteHeader(http.StatusNotFound)
				return true
			}
			return false
		},
		"is slow": func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-time.After(5 * time.Second):
			case <-r.Context().Done():
			}
			return false
		},
		"answers with other bytes": func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			rw.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			rw.Header().Set("ETag", `"0"`)
			rw.Write(make([]byte, 10_000))
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.second()
			front.Fault(fault)
			w.cloned()
			front.Fault(nil)
		})
	}
	w.t = t
	w.second()
	s3.Kill()
	w.cloned()
	s3.Run(t)
	w.second()
	w.cloned()
}

// An object in the store whose contents are not the objects that it names is not served, even if its checksum is right.
func TestForgedObject(t *testing.T) {
	store := t.TempDir()
	w := newWorld(t, Options{Objects: store})
	w.cloned()
	w.stop()
	forged := 0
	err := filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(filepath.Dir(path)) != "blob" {
			return err
		}
		f, err := packs.Open(path, true)
		if err != nil {
			return err
		}
		places, err := packs.Places(f.Table, f.Body)
		if err != nil {
			return err
		}
		out, err := os.Create(path + ".new")
		if err != nil {
			return err
		}
		p, err := packs.NewWriter(out, object.SHA1, len(places))
		for id := range places {
			if err == nil {
				_, err = p.Add(id, object.Blob, 6, strings.NewReader("forged"))
			}
		}
		if err == nil {
			err = p.Close()
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		forged++
		return err
	})
	if err != nil || forged == 0 {
		t.Fatalf("forge %d groups: %v", forged, err)
	}
	w.second()
	w.cloned()
	if n := w.relay.shelf.Stats.Damaged.Load(); n == 0 {
		t.Error("the forged group was not noticed")
	}
	// The relay has replaced the object, so that the next one can use it.
	await.Until(t, "the group is stored again", func() bool { return w.relay.shelf.Stats.Stored.Load() > 0 })
	w.second()
	w.server.Log().Reset()
	w.cloned()
	if n := w.sentOnce(); n != 0 {
		t.Errorf("%d fetches after the repair:\n%s", n, w.server.Log())
	}
}

// A full or small local disk costs requests to the git server, and nothing else.
func TestSmallCache(t *testing.T) {
	w := newWorld(t, Options{CacheSize: 1})
	for range 2 {
		w.cloned()
	}
	files, bytes := w.relay.shelf.Usage()
	if files > 0 || bytes > 0 || w.relay.shelf.Stats.Evicted.Load() == 0 {
		t.Errorf("a cache of one byte contains %d files with %d bytes", files, bytes)
	}
}

// While the local disk is full, the relay fetches nothing that it cannot store, so that a clone costs no more than
// without it.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which may mount a small file system")
	}
	data := t.TempDir()
	if err := unix.Mount("tmpfs", data, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(data, unix.MNT_DETACH) })
	w := newWorld(t, Options{Data: data})
	if _, err := w.lazy(); err == nil {
		t.Error("the disk is not full: a clone, whose answer then breaks off, succeeds")
	}
	w.server.Log().Reset()
	dir, err := w.lazy()
	if err != nil {
		t.Fatal(err)
	}
	w.compare(dir, w.commit)
	through := len(w.server.Log().Fetches())
	w.server.Log().Reset()
	gittest.Must(t, "", "clone", "--quiet", "--depth=2", "--filter=blob:none", w.server.URL(repoName),
		filepath.Join(t.TempDir(), "direct"))
	if want := len(w.server.Log().Fetches()); through != want {
		t.Errorf("fetches through a relay whose disk is full: got %d, want %d as without it", through, want)
	}
}
