package reffile

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

var file = File{Ref: "refs/afs/test/one", Name: "lines.jsonl"}

// each runs a test with two empty repositories: one that is reached by its path, and one that is reached by HTTP.
func each(t *testing.T, test func(t *testing.T, repo string, open func() *Store)) {
	for _, format := range []string{"sha1", "sha256"} {
		for _, way := range []string{"path", "http"} {
			t.Run(way+" "+format, func(t *testing.T) {
				t.Parallel()
				repo := filepath.Join(t.TempDir(), "r.git")
				gittest.Must(t, filepath.Dir(repo), "init", "-q", "--bare", "--object-format="+format, repo)
				gittest.Must(t, repo, "config", "http.receivepack", "true")
				url := repo
				if way == "http" {
					s, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(repo)})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { s.Close() })
					url = s.URL("r.git")
				}
				test(t, repo, func() *Store {
					r, err := transport.Open(url, transport.Options{})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { r.Close() })
					return &Store{Remote: r, Dir: t.TempDir()}
				})
			})
		}
	}
}

func add(line string) func(Version) ([]byte, error) {
	return func(now Version) ([]byte, error) { return append(now.Content, line+"\n"...), nil }
}

// TestWritersLoseNothing checks that concurrent writers lose no change, and that stock git can read each version.
func TestWritersLoseNothing(t *testing.T) {
	each(t, func(t *testing.T, repo string, open func() *Store) {
		const writers, changes = 3, 4
		if v, err := open().Read(t.Context(), file); err != nil || !v.Commit.IsZero() || v.Content != nil {
			t.Fatalf("file that does not exist: got %+v, %v", v, err)
		}
		var all sync.WaitGroup
		for w := range writers {
			s := open()
			all.Go(func() {
				for i := range changes {
					if _, err := s.Change(t.Context(), file, "add a line", add(fmt.Sprintf("%d %d", w, i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		v, err := open().Read(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if got := gittest.Must(t, repo, "cat-file", "blob", file.Ref+":"+file.Name); got+"\n" != string(v.Content) {
			t.Errorf("contents: got %q, git has %q", v.Content, got)
		}
		for w := range writers {
			for i := range changes {
				if n := strings.Count(string(v.Content), fmt.Sprintf("%d %d\n", w, i)); n != 1 {
					t.Errorf("change %d of writer %d is there %d times", i, w, n)
				}
			}
		}
		if got := gittest.Must(t, repo, "rev-list", "--count", file.Ref); got != fmt.Sprint(writers*changes) {
			t.Errorf("versions: got %s, want %d", got, writers*changes)
		}
		gittest.Must(t, repo, "fsck", "--strict")
	})
}

// TestLocalWritersLoseNothing checks that concurrent writers in the repository of a session lose no change, and that gc
// keeps the objects.
func TestLocalWritersLoseNothing(t *testing.T) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(format.String(), func(t *testing.T) {
			t.Parallel()
			const writers, changes = 3, 4
			dir := filepath.Join(t.TempDir(), "session.git")
			repo, err := session.OpenRepo(dir, session.RepoOptions{Format: format, Session: "work"})
			if err != nil {
				t.Fatal(err)
			}
			defer repo.Close()
			local := &Local{Repo: repo}
			if v, err := local.Read(t.Context(), file); err != nil || !v.Commit.IsZero() {
				t.Fatalf("file that does not exist: got %+v, %v", v, err)
			}
			var all sync.WaitGroup
			for w := range writers {
				all.Go(func() {
					for i := range changes {
						if _, err := local.Change(t.Context(), file, "add a line", add(fmt.Sprintf("%d %d", w, i))); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			if _, err := repo.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			v, err := local.Read(t.Context(), file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(v.Content), "\n"); n != writers*changes {
				t.Errorf("got %d changes, want %d: %q", n, writers*changes, v.Content)
			}
			if got := gittest.Must(t, dir, "rev-list", "--count", file.Ref); got != fmt.Sprint(writers*changes) {
				t.Errorf("versions: got %s, want %d", got, writers*changes)
			}
		})
	}
}

// TestNothingIsWritten checks that nothing is written if edit returns an error, or changes nothing.
func TestNothingIsWritten(t *testing.T) {
	each(t, func(t *testing.T, repo string, open func() *Store) {
		s := open()
		refused := errors.New("refused")
		if _, err := s.Change(t.Context(), file, "", func(Version) ([]byte, error) { return nil, refused }); !errors.Is(err,
			refused) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Change(t.Context(), file, "", func(Version) ([]byte, error) { return nil, nil }); err != nil {
			t.Error(err)
		}
		if _, err := s.Change(t.Context(), file, "",
			func(Version) ([]byte, error) { return make([]byte, MaxSize+1), nil }); !errors.Is(err, ErrTooLarge) {
			t.Errorf("file of more than 16 MiB: got %v", err)
		}
		if got := gittest.Must(t, repo, "for-each-ref"); got != "" {
			t.Errorf("refs: %s", got)
		}
		if _, err := s.Change(t.Context(), file, "", add("one")); err != nil {
			t.Fatal(err)
		}
		other := File{Ref: file.Ref, Name: "other"}
		if _, err := s.Read(t.Context(), other); !errors.Is(err, ErrNotFile) {
			t.Errorf("another file of the ref: got %v", err)
		}
		gittest.Must(t, repo, "update-ref", file.Ref, file.Ref+":"+file.Name)
		if _, err := s.Read(t.Context(), file); !errors.Is(err, ErrNotFile) {
			t.Errorf("ref to a blob: got %v", err)
		}
	})
}
