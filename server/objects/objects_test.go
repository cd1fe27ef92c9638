package objects

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/artifactfs/artifactfs/integration/harness/s3test"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// suite tests the requirements of a Store.
func suite(t *testing.T, s Store) {
	ctx, dir := t.Context(), t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o400); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := s.Ready(ctx); err != nil {
		t.Fatalf("Ready: %v", err)
	}
	big := make([]byte, 3<<20)
	rand.Read(big)
	for i, data := range [][]byte{{0}, []byte("small"), big} {
		key := fmt.Sprintf("packs/a%d/01ABC-%d.pack", i, i)
		from, to := write(fmt.Sprint("from", i), data), filepath.Join(dir, fmt.Sprint("to", i))
		for range 2 { // the second Put repeats one whose answer was lost
			if err := s.Put(ctx, key, from); err != nil {
				t.Fatalf("Put of %d bytes: %v", len(data), err)
			}
		}
		if err := s.Get(ctx, key, to); err != nil {
			t.Fatalf("Get of %d bytes: %v", len(data), err)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
			t.Errorf("file of %d bytes came back with %d (%v)", len(data), len(got), err)
		}
		for range 2 {
			if err := s.Delete(ctx, key); err != nil {
				t.Errorf("Delete: %v", err)
			}
		}
		if err := s.Get(ctx, key, to+"-deleted"); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get of a deleted file: got %v, want ErrNotFound", err)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the file that Get created changed with Delete: %d bytes, %v", len(got), err)
		}
	}
	if err := s.Get(ctx, "packs/none", filepath.Join(dir, "none")); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of a missing file: got %v, want ErrNotFound", err)
	}
	if err := s.Put(ctx, "packs/none", filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Put of a missing file: got %v", err)
	}
	for _, key := range []string{"", "/", "a//b", "../a", "a/../b", ".tmp", "a/", "a b", "a\x00", "ü"} {
		if s.Put(ctx, key, write("x"+rand.Text(), nil)) == nil || s.Get(ctx, key, filepath.Join(dir, "y")) == nil ||
			s.Delete(ctx, key) == nil {
			t.Errorf("key %q was accepted", key)
		}
	}
	var wg sync.WaitGroup
	for i := range 20 {
		from := write(fmt.Sprint("many", i), fmt.Append(nil, "contents ", i))
		wg.Go(func() {
			key := fmt.Sprint("many/", i%3, "/", i)
			if err := errors.Join(s.Put(ctx, key, from), s.Get(ctx, key, from+"-back"), s.Delete(ctx, key)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	cacheSuite(t, s.(Cache), write)
	left, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %q", left)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Get(ended, "packs/none", filepath.Join(dir, "none")); err == nil {
		t.Error("Get succeeded after the end of its context")
	}
}

// cacheSuite tests the additional requirements of a Cache.
func cacheSuite(t *testing.T, s Cache, write func(name string, data []byte) string) {
	ctx := t.Context()
	first, second := write("first", []byte("0123456789")), write("second", []byte("another text"))
	for i, path := range []string{first, second} {
		if stored, err := s.PutNew(ctx, "v1/a/key", path); err != nil || stored != (i == 0) {
			t.Errorf("PutNew number %d: stored %v, %v", i, stored, err)
		}
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 10, "0123456789"}, {0, 1, "0"}, {3, 4, "3456"}, {8, 100, "89"}, {-3, 0, "789"}, {-100, 0, "0123456789"}} {
		got, size, err := s.Range(ctx, "v1/a/key", c.offset, c.length)
		if err != nil || string(got) != c.want || size != 10 {
			t.Errorf("Range(%d, %d): got %q of %d bytes (%v), want %q of 10", c.offset, c.length, got, size, err, c.want)
		}
	}
	if _, _, err := s.Range(ctx, "v1/a/none", 0, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("Range of a missing file: got %v, want ErrNotFound", err)
	}
	var stored atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		path := write(fmt.Sprint("race", i), bytes.Repeat([]byte{byte(i)}, 1000*(i+1)))
		wg.Go(func() {
			ok, err := s.PutNew(ctx, "v1/a/race", path)
			if err != nil {
				t.Errorf("PutNew of process %d: %v", i, err)
			}
			if ok {
				stored.Add(1)
			}
		})
	}
	wg.Wait()
	if n := stored.Load(); n < 1 || s.Shared() && n != 1 {
		t.Errorf("%d of 8 files with one key were stored, want 1", n)
	}
}

func TestDir(t *testing.T) {
	s, err := Open("file://" + t.TempDir() + "/a/b")
	if err != nil {
		t.Fatal(err)
	}
	suite(t, s)
	if s.Shared() {
		t.Error("a directory is not shared")
	}
}

// crossing is a file system on which hard links fail as between two file systems.
type crossing struct{ disk.FS }

func (crossing) Link(old, new string) error {
	return &os.LinkError{Op: "link", Old: old, New: new, Err: syscall.EXDEV}
}

// TestDirBehindLink checks that the store, or a directory above it, may be a symbolic link.
func TestDirBehindLink(t *testing.T) {
	top := t.TempDir()
	real, link := filepath.Join(top, "real"), filepath.Join(top, "link")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(top, "file")
	if err := os.WriteFile(from, []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, dir := range map[string]string{"one": link, "two": filepath.Join(link, "new", "objects")} {
		d, err := OpenDir(dir)
		if err == nil {
			err = d.Put(t.Context(), key, from)
		}
		if err != nil {
			t.Errorf("store in %s: %v", dir, err)
		}
	}
	for _, path := range []string{"one", "new/objects/two"} {
		if got, err := os.ReadFile(filepath.Join(real, path)); err != nil || string(got) != "contents" {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
	}
}

func TestDirOnAnotherFileSystem(t *testing.T) {
	s, err := openDir(crossing{disk.OS}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	suite(t, s)
}

// TestDirSurvivesPowerCuts checks that a file that Put has acknowledged survives a power failure, whether it was linked
// or copied, and also after failed attempts.
func TestDirSurvivesPowerCuts(t *testing.T) {
	for name, wrap := range map[string]func(disk.FS) disk.FS{
		"link": func(fs disk.FS) disk.FS { return fs },
		"copy": func(fs disk.FS) disk.FS { return crossing{fs} },
	} {
		t.Run(name, func(t *testing.T) {
			disktest.EveryFault(t, 2, 1, func(t *testing.T, f *disktest.Faults, errno error) {
				root := t.TempDir()
				crash, err := disktest.NewCrashFS(root)
				if err != nil {
					t.Fatal(err)
				}
				defer crash.Close()
				on := disktest.Faulty(wrap(crash), f.Fail)
				s, err := openDir(on, filepath.Join(root, "objects"))
				if err != nil {
					t.Fatal(err)
				}
				stored := map[string]string{}
				for i, key := range []string{"packs/a/1", "packs/a/2", "packs/b/3"} {
					path := filepath.Join(root, fmt.Sprint("file", i))
					text := strings.Repeat(fmt.Sprint(i), 9000)
					file, err := crash.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := file.WriteAt([]byte(text), 0); err != nil {
						t.Fatal(err)
					}
					file.Close()
					err = f.During(func() error { return s.Put(t.Context(), key, path) })
					if err == nil {
						stored[key] = text
					} else if want := map[error]error{syscall.ENOSPC: ErrFull, syscall.EIO: ErrUnavailable}[errno]; !errors.Is(err,
						want) {
						t.Errorf("Put failed with %v, want %v", err, want)
					}
				}
				for seed := range uint64(5) {
					after := filepath.Join(t.TempDir(), "after")
					if err := crash.Crash(after, seed); err != nil {
						t.Fatal(err)
					}
					for key, text := range stored {
						if got, err := os.ReadFile(filepath.Join(after, "objects", key)); err != nil || string(got) != text {
							t.Errorf("object %s after a power cut: %d bytes, %v", key, len(got), err)
						}
					}
				}
			})
		})
	}
}

func TestS3(t *testing.T) {
	server := s3test.Start(t)
	front := s3test.NewFront(t, server)
	s, err := Open(front.StoreURL("some/prefix"))
	if err != nil {
		t.Fatal(err)
	}
	suite(t, s)
	front.Take()
	ctx, dir := t.Context(), t.TempDir()
	data := make([]byte, 2<<20)
	rand.Read(data)
	from := filepath.Join(dir, "from")
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}

	t.Run("requests", func(t *testing.T) {
		if err := s.Put(ctx, "one", from); err != nil {
			t.Fatal(err)
		}
		put := front.Take()
		if err := s.Get(ctx, "one", from+"-one"); err != nil {
			t.Fatal(err)
		}
		get := front.Take()
		if len(put.Requests) != 1 || put.Requests["PUT"] != 1 || len(get.Requests) != 1 || get.Requests["GET"] != 1 {
			t.Errorf("requests of Put: %v, of Get: %v; want one each", put.Requests, get.Requests)
		}
		t.Logf("Put of %d bytes sent %d; Get received %d", len(data), put.Sent, get.Received)
	})
	t.Run("overload", func(t *testing.T) {
		var busy atomic.Int32
		busy.Store(2)
		front.Fault(func(w http.ResponseWriter, r *http.Request) bool {
			if busy.Add(-1) >= 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			return false
		})
		defer front.Fault(nil)
		if err := s.Put(ctx, "two", from); err != nil {
			t.Errorf("Put after two answers 503: %v", err)
		}
		busy.Store(1000)
		if err := s.Get(ctx, "two", from+"-two"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Get of an overloaded service: got %v, want ErrUnavailable", err)
		}
	})
	t.Run("broken download", func(t *testing.T) {
		var broken atomic.Int32
		front.Fault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || broken.Add(1) > 2 {
				return false
			}
			if r.Header.Get("Range") != "" {
				panic(http.ErrAbortHandler) // closes the connection
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			w.Header().Set("ETag", etag(t, server))
			w.Write(data[:len(data)/2])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		defer front.Fault(nil)
		to := from + "-three"
		if err := s.Get(ctx, "one", to); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(to); !bytes.Equal(got, data) {
			t.Errorf("resumed download has other contents: %d bytes", len(got))
		}
	})
	t.Run("away", func(t *testing.T) {
		server.Kill()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := s.Ready(ended); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Ready without a service: %v", err)
		}
		server.Run(t)
		if err := s.Ready(ctx); err != nil {
			t.Errorf("Ready after the start of the service: %v", err)
		}
		if err := s.Get(ctx, "one", from+"-four"); err != nil {
			t.Errorf("Get after the start of the service: %v", err)
		}
	})
	t.Run("bucket", func(t *testing.T) {
		other, err := Open(strings.Replace(front.StoreURL(""), s3test.Bucket, "missing", 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Ready(ctx); err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("Ready without a bucket: got %v, want an error that is not ErrUnavailable", err)
		}
	})
}

// etag returns the ETag of the object "one".
func etag(t *testing.T, server *s3test.Server) string {
	s, err := openS3(server.URL("some/prefix"))
	if err != nil {
		t.Error(err)
		return ""
	}
	info, err := s.client.StatObject(t.Context(), s.bucket, s.prefix+"one", minio.StatObjectOptions{})
	if err != nil {
		t.Error(err)
	}
	return `"` + info.ETag + `"`
}

func TestURLsWithoutSecrets(t *testing.T) {
	for _, bad := range []string{"s3://", "s3://key:hidden@bucket/p", "s3://bucket/p?secret=hidden", "s3://bucket/../x",
		"s3://bucket?endpoint=127.0.0.1", "s3://bucket?endpoint=http://u:hidden@host", "gs://bucket", "s3://b%zzhidden"} {
		if _, err := Open(bad); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("open %s: got %v", bad, err)
		}
	}
}
