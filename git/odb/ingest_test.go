package odb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestIngest ingests all kinds of packs that git makes, and checks the stored packs with git.
func TestIngest(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := fixture(t, f)
		for name, args := range map[string][]string{
			"ofs":   {"--delta-base-offset"},
			"ref":   nil,
			"plain": {"--depth=0", "--window=0"},
		} {
			t.Run(name, func(t *testing.T) {
				pack := packOf(t, dir, args...)
				to := newRepo(t, f)
				s := open(t, filepath.Join(to, "objects"), f)
				seen := 0
				res, err := s.Ingest(context.Background(), bytes.NewReader(pack),
					IngestOptions{Promisor: true, MaxObjectSize: noLimit},
					func(id object.ID, typ object.Type, data []byte) {
						seen++
						c := want[id]
						if typ != c.typ || !bytes.Equal(data, c.data) {
							t.Fatalf("reported object %s as %s of %d bytes", id, typ, len(data))
						}
						if got, data, err := s.Get(id, noLimit); err != nil || got != typ || !bytes.Equal(data, c.data) {
							t.Fatalf("Get(%s) while streaming: %v", id, err)
						}
					})
				if err != nil {
					t.Fatal(err)
				}
				if seen != len(want) || res.Objects != len(want) || res.Bytes != int64(len(pack)) {
					t.Fatalf("result %+v, %d objects reported, want %d objects in %d bytes", res, seen, len(want), len(pack))
				}
				want.check(t, s)
				want.check(t, open(t, filepath.Join(to, "objects"), f))

				path := filepath.Join(to, "objects", "pack", res.Name)
				git(t, to, nil, "verify-pack", path+".idx")
				mine, err := os.ReadFile(path + ".idx")
				if err != nil {
					t.Fatal(err)
				}
				git(t, to, nil, "index-pack", "--strict", "-o", filepath.Join(to, "git.idx"), path+".pack")
				theirs, err := os.ReadFile(filepath.Join(to, "git.idx"))
				if err != nil || !bytes.Equal(mine, theirs) {
					t.Fatalf("index differs from git's: %v", err)
				}
				git(t, to, nil, "fsck", "--full", "--strict")
				if _, err := os.Stat(path + ".promisor"); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// leftovers returns the names of the files in a pack directory.
func leftovers(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "pack", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestIngestHostile checks that Ingest refuses the packs that Unpack refuses, and leaves no files of them.
func TestIngestHostile(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir := t.TempDir()
		s := open(t, dir, f)
		first := idOf(f, object.Blob, []byte("first"))
		for name, h := range hostile(f) {
			_, err := s.Ingest(context.Background(), bytes.NewReader(h.pack),
				IngestOptions{Promisor: true, MaxObjectSize: 1 << 30}, nil)
			if !errors.Is(err, h.want) {
				t.Errorf("pack %s: got %v, want %v", name, err, h.want)
			}
			if left := leftovers(t, dir); len(left) != 0 {
				t.Fatalf("pack %s: files after the failure: %q", name, left)
			}
			if s.Has(first) {
				t.Fatalf("pack %s: an object of the failed pack can be read", name)
			}
		}
	})
}

// TestIngestWhileItStreams reads objects of a pack that is still being received. After a failure, these objects cannot
// be read any more.
func TestIngestWhileItStreams(t *testing.T) {
	dir, want := fixture(t, object.SHA1)
	pack := packOf(t, dir, "--delta-base-offset")
	objects := t.TempDir()
	s := open(t, objects, object.SHA1)
	r, w := io.Pipe()
	told := make(chan object.ID, len(want))
	done := make(chan error, 1)
	go func() {
		_, err := s.Ingest(context.Background(), r, IngestOptions{MaxObjectSize: noLimit},
			func(id object.ID, _ object.Type, _ []byte) { told <- id })
		done <- err
	}()
	w.Write(pack[:len(pack)/2])
	part := truth{}
	for range 50 {
		id := <-told
		part[id] = want[id]
	}
	part.check(t, s)
	broken := errors.New("broken")
	w.CloseWithError(broken)
	if err := <-done; !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	for id := range part {
		if _, _, err := s.Get(id, noLimit); !errors.Is(err, ErrNotFound) {
			t.Fatalf("get an object after the failure: got %v", err)
		}
	}
	if left := leftovers(t, objects); len(left) != 0 {
		t.Fatalf("files after the failure: %q", left)
	}
}

// TestIngestLarge ingests blobs that exceed the memory limit, and deltas against them.
func TestIngestLarge(t *testing.T) {
	pack, want := largePack(t)
	to := newRepo(t, object.SHA1)
	s := open(t, filepath.Join(to, "objects"), object.SHA1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := s.Ingest(context.Background(), bytes.NewReader(pack), IngestOptions{MaxObjectSize: noLimit},
		func(id object.ID, typ object.Type, data []byte) {
			if data != nil || typ != object.Blob {
				t.Errorf("reported object %s with %d bytes", id, len(data))
			}
		})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
		t.Errorf("Ingest allocated %d bytes", took)
	}
	want.check(t, s)
	git(t, to, nil, "fsck", "--full", "--strict")
	for id, c := range want {
		runtime.ReadMemStats(&before)
		if err := s.WriteTo(id, io.Discard); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("WriteTo allocated %d bytes", took)
		}
		size := int64(len(c.data))
		if _, _, err := s.Get(id, size-1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Get with %d bytes allowed: %v", size-1, err)
		}
		if _, _, err := s.Get(id, size); err != nil {
			t.Errorf("Get with %d bytes allowed: %v", size, err)
		}
	}
}

func TestIngestEmptyAndAgain(t *testing.T) {
	objects := t.TempDir()
	s := open(t, objects, object.SHA1)
	if res := ingest(t, s, newCraft(object.SHA1).pack()); res.Name != "" || res.Objects != 0 ||
		len(leftovers(t, objects)) != 0 {
		t.Errorf("an empty pack: got %+v, files %q", res, leftovers(t, objects))
	}
	c := newCraft(object.SHA1)
	_, id := c.plain(object.Blob, []byte("text"))
	one := ingest(t, s, c.pack())
	two := ingest(t, s, c.pack())
	if one != two || len(leftovers(t, objects)) != 2 || !s.Has(id) {
		t.Errorf("the same pack twice: got %+v, then %+v, files %q", one, two, leftovers(t, objects))
	}
	if err := s.Refresh(); err != nil || len(s.view.packs) != 1 {
		t.Errorf("packs in view: got %d, %v", len(s.view.packs), err)
	}
}

// TestIngestDuplicates checks that Ingest accepts a pack that contains an object twice, as git does, because some
// servers send such packs.
func TestIngestDuplicates(t *testing.T) {
	c := newCraft(object.SHA1)
	c.plain(object.Blob, []byte("text"))
	off, _ := c.plain(object.Blob, []byte("text"))
	c.ofs(off, insertion([]byte("text"), "more"))
	to := newRepo(t, object.SHA1)
	s := open(t, filepath.Join(to, "objects"), object.SHA1)
	res := ingest(t, s, c.pack())
	git(t, to, nil, "index-pack", "-o", filepath.Join(to, "git.idx"),
		filepath.Join(to, "objects", "pack", res.Name+".pack"))
	if _, data, err := s.Get(idOf(object.SHA1, object.Blob, []byte("textmore")), 100); err != nil ||
		string(data) != "textmore" {
		t.Errorf("get an object of the thin pack: got %q, %v", data, err)
	}
}

// TestIngestDepth checks that Ingest refuses chains of deltas that are too long to be read in a reasonable time.
func TestIngestDepth(t *testing.T) {
	c := newCraft(object.SHA1)
	text := []byte("0")
	off, _ := c.plain(object.Blob, text)
	for i := range maxDepth {
		next := fmt.Append(nil, i+1)
		d := append(sizes(int64(len(text)), int64(len(next))), byte(len(next)))
		off = c.ofs(off, append(d, next...))
		text = next
	}
	s := open(t, t.TempDir(), object.SHA1)
	ingest(t, s, c.pack())
	if _, data, err := s.Get(idOf(object.SHA1, object.Blob, text), 100); err != nil || !bytes.Equal(data, text) {
		t.Errorf("chain of the maximal length: got %q, %v", data, err)
	}
	c.ofs(off, insertion(text, "x"))
	if _, err := s.Ingest(context.Background(), bytes.NewReader(c.pack()), IngestOptions{MaxObjectSize: noLimit},
		nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("chain that is too long by one: got %v", err)
	}
}

func TestIngestCancelled(t *testing.T) {
	objects := t.TempDir()
	s := open(t, objects, object.SHA1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Ingest(ctx, bytes.NewReader(newCraft(object.SHA1).pack()), IngestOptions{}, nil)
	if !errors.Is(err, context.Canceled) || len(leftovers(t, objects)) != 0 {
		t.Errorf("cancelled Ingest: got %v, files %q", err, leftovers(t, objects))
	}
	s.Close()
	_, err = s.Ingest(context.Background(), bytes.NewReader(newCraft(object.SHA1).pack()), IngestOptions{}, nil)
	if !errors.Is(err, fs.ErrClosed) || len(leftovers(t, objects)) != 0 {
		t.Errorf("Ingest of a closed Store: got %v, files %q", err, leftovers(t, objects))
	}
}

// TestIngestPublishFails removes the pack directory before the pack is renamed to its final name.
func TestIngestPublishFails(t *testing.T) {
	objects := t.TempDir()
	s := open(t, objects, object.SHA1)
	c := newCraft(object.SHA1)
	_, id := c.plain(object.Blob, []byte("text"))
	_, err := s.Ingest(context.Background(), bytes.NewReader(c.pack()), IngestOptions{MaxObjectSize: noLimit},
		func(object.ID, object.Type, []byte) {
			if err := os.RemoveAll(filepath.Join(objects, "pack")); err != nil {
				t.Error(err)
			}
		})
	if !errors.Is(err, fs.ErrNotExist) || s.Has(id) {
		t.Errorf("Ingest without a pack directory: got %v; Has returns %v", err, s.Has(id))
	}
}
