package odb

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestStoreReadsGit reads packs and indexes that were written by git.
func TestStoreReadsGit(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := fixture(t, f)
		for name, config := range map[string][]string{
			"ofs":  {"-c", "repack.useDeltaBaseOffset=true"},
			"ref":  {"-c", "repack.useDeltaBaseOffset=false"},
			"many": {"-c", "pack.packSizeLimit=1m"},
		} {
			t.Run(name, func(t *testing.T) {
				to := newRepo(t, f)
				git(t, to, nil, "fetch", "-q", dir, "refs/*:refs/*")
				git(t, to, nil, append(config, "repack", "-q", "-a", "-d", "-f", "--depth=50", "--window=50")...)
				want.check(t, open(t, filepath.Join(to, "objects"), f))
			})
		}
	})
}

// TestStoreUnderRepack reads objects while git repeatedly replaces all packs, while packs are being ingested, and while
// other goroutines refresh.
func TestStoreUnderRepack(t *testing.T) {
	dir, want := fixture(t, object.SHA1)
	pack := packOf(t, dir, "--delta-base-offset")
	to := newRepo(t, object.SHA1)
	git(t, to, nil, "fetch", "-q", dir, "refs/*:refs/*")
	git(t, to, nil, "repack", "-q", "-a", "-d")
	s := open(t, filepath.Join(to, "objects"), object.SHA1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	reader := func(read func(id object.ID, c content) error) {
		wg.Go(func() {
			for {
				for id, c := range want {
					select {
					case <-stop:
						return
					default:
					}
					if err := read(id, c); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	get := func(id object.ID, c content) error {
		typ, data, err := s.Get(id, noLimit)
		if err == nil && (typ != c.typ || !bytes.Equal(data, c.data)) {
			err = errors.New("wrong content")
		}
		return err
	}
	reader(get)
	reader(get)
	reader(func(id object.ID, c content) error {
		var b bytes.Buffer
		if err := s.WriteTo(id, &b); err != nil || !bytes.Equal(b.Bytes(), c.data) {
			return errors.Join(err, errors.New("wrong content written"))
		}
		return nil
	})
	reader(func(object.ID, content) error { return s.Refresh() })
	for i := range 4 {
		if _, err := s.Ingest(context.Background(), bytes.NewReader(pack), IngestOptions{MaxObjectSize: noLimit},
			nil); err != nil {
			t.Error(err)
		}
		for id := range want { // readers have opened the pack that is removed
			if _, _, err := s.Size(id); err != nil {
				t.Error(err)
			}
		}
		// Another window size makes other deltas, so the pack gets another name.
		git(t, to, nil, "-c", "pack.threads=1", "repack", "-q", "-a", "-d", "-f", "--window="+string(rune('2'+i)))
	}
	close(stop)
	wg.Wait()
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	packs, err := filepath.Glob(filepath.Join(to, "objects", "pack", "*.pack"))
	if err != nil || len(s.view.packs) != len(packs) || len(s.users) != len(packs) {
		t.Errorf("got %d packs in view, %d open, and %d on disk, %v", len(s.view.packs), len(s.users), len(packs), err)
	}
}

// TestStoreFindsNewPacks checks that a Store finds packs that another process has added, without a call of Refresh.
func TestStoreFindsNewPacks(t *testing.T) {
	objects := t.TempDir()
	s, other := open(t, objects, object.SHA1), open(t, objects, object.SHA1)
	for i := range 20 { // all changes happen within one tick of the clock of the file system
		c := newCraft(object.SHA1)
		_, id := c.plain(object.Blob, []byte{byte(i)})
		if _, _, err := s.Get(id, 10); !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		ingest(t, other, c.pack())
		if s.Has(id) {
			t.Fatal("Has read the directory")
		}
		if _, _, err := s.Size(id); err != nil {
			t.Fatal(err)
		}
		if !s.Has(id) {
			t.Fatal("Has returns false for an object that was read")
		}
	}
}

// TestStoreDamage flips every byte of a pack on disk. A read must return the correct contents or an error, and must
// succeed if a second copy exists.
func TestStoreDamage(t *testing.T) {
	text := bytes.Repeat([]byte("some text of a blob\n"), 10)
	c := newCraft(object.SHA1)
	off, id := c.plain(object.Blob, text)
	c.ofs(off, insertion(text, "more"))
	delta := idOf(object.SHA1, object.Blob, append(bytes.Clone(text), "more"...))
	want := truth{id: {object.Blob, text}, delta: {object.Blob, append(bytes.Clone(text), "more"...)}}

	objects := t.TempDir()
	res := ingest(t, open(t, objects, object.SHA1), c.pack())
	path := filepath.Join(objects, "pack", res.Name+".pack")
	good := must(os.ReadFile(path))
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x22
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		s := must(Open(objects, object.SHA1))
		for id, c := range want {
			_, data, err := s.Get(id, noLimit)
			if err == nil && !bytes.Equal(data, c.data) {
				t.Fatalf("byte %d flipped: Get returned wrong contents", i)
			}
			if err != nil {
				if failed++; !errors.Is(err, ErrCorrupt) {
					t.Fatalf("byte %d flipped: got %v", i, err)
				}
			}
			var b bytes.Buffer
			if err := s.WriteTo(id, &b); err == nil && !bytes.Equal(b.Bytes(), c.data) {
				t.Fatalf("byte %d flipped: WriteTo wrote wrong contents", i)
			}
			s.Size(id)
		}
		s.Close()
	}
	if failed < len(good) {
		t.Errorf("only %d of %d reads failed", failed, 2*len(good))
	}

	again := newCraft(object.SHA1)
	again.plain(object.Blob, []byte("another pack"))
	again.plain(object.Blob, text)
	again.plain(object.Blob, want[delta].data)
	good[off+5] ^= 0x55
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, objects, object.SHA1)
	ingest(t, s, again.pack())
	want.check(t, s)
}

// TestStoreBrokenIndex checks that an invalid index makes only its own pack unreadable.
func TestStoreBrokenIndex(t *testing.T) {
	objects := t.TempDir()
	c := newCraft(object.SHA1)
	_, id := c.plain(object.Blob, []byte("text"))
	res := ingest(t, open(t, objects, object.SHA1), c.pack())
	path := filepath.Join(objects, "pack", res.Name+".idx")
	for _, data := range [][]byte{nil, []byte("no index"), bytes.Repeat([]byte{0}, 2000)} {
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		s := open(t, objects, object.SHA1)
		if _, _, err := s.Get(id, 10); !errors.Is(err, ErrNotFound) || !errors.Is(err, ErrCorrupt) || s.Has(id) {
			t.Errorf("get an object of a corrupt file: got %v, want ErrNotFound and ErrCorrupt", err)
		}
		c := newCraft(object.SHA1)
		_, other := c.plain(object.Blob, []byte("other"))
		ingest(t, s, c.pack())
		if _, _, err := s.Get(other, 10); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenSweeps checks that Open removes files of killed processes, and keeps files that are in use or belong to other
// programs.
func TestOpenSweeps(t *testing.T) {
	objects := t.TempDir()
	open(t, objects, object.SHA1)
	dir := filepath.Join(objects, "pack")
	used, err := lockedTemp(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	for _, name := range []string{tempPrefix + "1", "tmp_pack_git", "pack-1.pack"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open(t, objects, object.SHA1)
	if left := leftovers(t, objects); len(left) != 3 {
		t.Errorf("files after Open: got %q", left)
	}
	if _, err := os.Stat(used.Name()); err != nil {
		t.Error(err)
	}
}

func TestStoreClosed(t *testing.T) {
	s := open(t, t.TempDir(), object.SHA1)
	c := newCraft(object.SHA1)
	_, id := c.plain(object.Blob, bytes.Repeat([]byte("text"), 100<<10))
	ingest(t, s, c.pack())
	// A reader that is active when the Store is closed can finish.
	err := s.WriteTo(id, writerFunc(func(p []byte) (int, error) { return len(p), s.Close() }))
	if err != nil {
		t.Error(err)
	}
	if _, _, err := s.Get(id, noLimit); !errors.Is(err, ErrNotFound) || s.Has(id) || len(s.users) != 0 {
		t.Errorf("get after Close: got %v", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || bytes.Contains(maps, []byte(s.dir+"/")) {
		t.Errorf("an index is still mapped after Close: %v", err)
	}
}

// TestWriteToFails checks that WriteTo returns the error of the writer, and does not try another copy after a part was
// written.
func TestWriteToFails(t *testing.T) {
	s := open(t, t.TempDir(), object.SHA1)
	c := newCraft(object.SHA1)
	_, id := c.plain(object.Blob, bytes.Repeat([]byte("text"), 100<<10))
	ingest(t, s, c.pack())
	for _, fail := range []int{0, 1} {
		calls := 0
		err := s.WriteTo(id, writerFunc(func(p []byte) (int, error) {
			if calls++; calls > fail {
				return 0, syscall.ENOSPC
			}
			return len(p), nil
		}))
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrCorrupt) || calls != fail+1 {
			t.Errorf("got %v after %d calls of the writer", err, calls)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

var _ io.Writer = writerFunc(nil)
