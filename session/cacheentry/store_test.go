package cacheentry

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// bare creates an empty bare repository and returns its path.
func bare(t *testing.T, format string) string {
	t.Helper()
	repo := filepath.Join(t.TempDir(), "r.git")
	gittest.Must(t, filepath.Dir(repo), "init", "-q", "--bare", "--object-format="+format, repo)
	gittest.Must(t, repo, "config", "http.receivepack", "true")
	return repo
}

// remote returns a Store for the repository at a URL or path.
func remote(t *testing.T, url string) *Store {
	t.Helper()
	r, err := transport.Open(url, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return &Store{Place: Remote{Remote: r, Dir: t.TempDir()}}
}

// each runs a test with three empty session remotes: one that is reached by its path, one that is reached by HTTP, which
// does not look at ids and has one format, and an embedded one.
func each(t *testing.T, test func(t *testing.T, repo string, open func() *Store)) {
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		repo := bare(t, "sha1")
		s := serve(t, filepath.Dir(repo), nil)
		test(t, repo, func() *Store { return remote(t, s.URL("r.git")) })
	})
	for _, format := range []string{"sha1", "sha256"} {
		t.Run("path "+format, func(t *testing.T) {
			t.Parallel()
			repo := bare(t, format)
			test(t, repo, func() *Store { return remote(t, repo) })
		})
		t.Run("embedded "+format, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "session.git")
			f, err := object.ParseFormat(format)
			if err != nil {
				t.Fatal(err)
			}
			test(t, dir, func() *Store {
				r, err := session.OpenRepo(dir, session.RepoOptions{Format: f, Session: "s"})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { r.Close() })
				return &Store{Place: Embedded{r}}
			})
		})
	}
}

// serve returns an HTTP server for git repositories that does not support filters, as by default.
func serve(t *testing.T, root string, count func(gittest.Request)) *gittest.Server {
	t.Helper()
	s, err := gittest.Serve(gittest.ServerOptions{Root: root, Config: []string{"uploadpack.allowFilter=false"},
		Each: count})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// text returns a Value with the given text.
func text(s string) Value {
	return Value{Size: int64(len(s)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }}
}

func hashOf(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// put stores an entry and fails the test on an error.
func put(t *testing.T, s *Store, r PutRequest) Entry {
	t.Helper()
	e, err := s.Put(t.Context(), r)
	if err != nil {
		t.Fatalf("put %q: %v", r.Key, err)
	}
	return e
}

// want fails the test unless the entry with the key has the value.
func want(t *testing.T, s *Store, key, value string) {
	t.Helper()
	var got bytes.Buffer
	e, err := s.Get(t.Context(), key, &got)
	if err != nil || got.String() != value || e.Hash != hashOf(value) || e.Size != int64(len(value)) || e.Key != key {
		t.Fatalf("get %q: got %+v, %.40q, %v; want the value %.40q", key, e, got.String(), err, value)
	}
}

// gone fails the test if an entry with the key exists.
func gone(t *testing.T, s *Store, key string) {
	t.Helper()
	var got bytes.Buffer
	if e, err := s.Get(t.Context(), key, &got); !errors.Is(err, ErrNone) || got.Len() > 0 {
		t.Fatalf("get %q: got %+v, %q, %v; want no entry", key, e, got.String(), err)
	}
}

// conflict fails the test unless err is a *ConflictError whose present entry has the given hash.
func conflict(t *testing.T, err error, present string) {
	t.Helper()
	var c *ConflictError
	if !errors.As(err, &c) || c.Present.Hash != present {
		t.Fatalf("got %v, want a conflict with the present hash %q", err, present)
	}
}

func TestPutGetDelete(t *testing.T) {
	each(t, func(t *testing.T, repo string, open func() *Store) {
		s, other := open(), open()
		gone(t, s, "k")
		if l, err := s.List(t.Context(), "", true); err != nil || len(l.Entries) != 0 {
			t.Fatalf("list of nothing: got %+v, %v", l, err)
		}
		put(t, s, PutRequest{Key: "k", Value: text("one"), Actor: "a", Session: "s"})
		want(t, other, "k", "one")
		conflict(t, second(s.Put(t.Context(), PutRequest{Key: "k", Value: text("x"), Expect: None})), hashOf("one"))
		conflict(t, second(s.Put(t.Context(), PutRequest{Key: "k", Value: text("x"), Expect: hashOf("x")})), hashOf("one"))
		conflict(t, second(s.Put(t.Context(), PutRequest{Key: "new", Value: text("x"), Expect: hashOf("x")})), "")
		put(t, other, PutRequest{Key: "k", Value: text("two"), Expect: hashOf("one")})
		want(t, s, "k", "two")
		put(t, s, PutRequest{Key: "empty", Value: text(""), Expect: None})
		want(t, other, "empty", "")
		e, err := other.Describe(t.Context(), "k")
		if err != nil || e.Actor != "" || e.Hash != hashOf("two") {
			t.Errorf("description: got %+v, %v", e, err)
		}
		if got := gittest.Must(t, repo, "cat-file", "blob", Ref("k")+"^:value"); got != "two" {
			t.Errorf("value that git finds: got %q", got)
		}
		if got := gittest.Must(t, repo, "cat-file", "blob", Ref("k")+":entry.json"); !strings.Contains(got, hashOf("two")) {
			t.Errorf("description that git finds: got %q", got)
		}
		gittest.Must(t, repo, "fsck", "--strict")
		conflict(t, s.Delete(t.Context(), "k", hashOf("one")), hashOf("two"))
		if err := s.Delete(t.Context(), "k", hashOf("two")); err != nil {
			t.Error(err)
		}
		gone(t, other, "k")
		if err := s.Delete(t.Context(), "k", ""); !errors.Is(err, ErrNone) {
			t.Errorf("second deletion: got %v", err)
		}
		if got := gittest.Must(t, repo, "for-each-ref", "--format=%(refname)"); got != Ref("empty") {
			t.Errorf("refs: got %s", got)
		}
	})
}

// second returns its second argument.
func second[T any](_ T, err error) error { return err }

// TestWritersAtTheSameTime checks that of several writers that expect the same present value exactly one succeeds, and
// that writers without an expected value all succeed.
func TestWritersAtTheSameTime(t *testing.T) {
	each(t, func(t *testing.T, _ string, open func() *Store) {
		const writers = 4
		var all sync.WaitGroup
		var won atomic.Int32
		winner := make(chan string, writers)
		for w := range writers {
			s, mine := open(), fmt.Sprintf("value %d", w)
			all.Go(func() {
				_, err := s.Put(t.Context(), PutRequest{Key: "k", Value: text(mine), Expect: None})
				if err == nil {
					won.Add(1)
					winner <- mine
				} else if c := new(ConflictError); !errors.As(err, &c) || c.Present.Hash == "" {
					t.Errorf("cas that lost: got %v", err)
				}
				if _, err := s.Put(t.Context(), PutRequest{Key: "other", Value: text(mine)}); err != nil {
					t.Errorf("put: %v", err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of %d writers won, want one", won.Load(), writers)
		}
		want(t, open(), "k", <-winner)
		if e, err := open().Describe(t.Context(), "other"); err != nil || e.Size != int64(len("value 0")) {
			t.Errorf("entry of all writers: got %+v, %v", e, err)
		}
	})
}

func TestExpiryAndGC(t *testing.T) {
	each(t, func(t *testing.T, repo string, open func() *Store) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := open()
		s.Now = func() time.Time { return now }
		for i, size := range []int{100, 200, 300, 400} {
			put(t, s, PutRequest{Key: fmt.Sprint("k", i), Value: text(strings.Repeat(fmt.Sprint(i), size))})
			now = now.Add(time.Hour)
		}
		put(t, s, PutRequest{Key: "short", Value: text("s"), TTL: time.Minute})
		want(t, s, "short", "s")
		now = now.Add(time.Minute)
		gone(t, s, "short")
		conflict(t, second(s.Put(t.Context(), PutRequest{Key: "short", Value: text("x"), Expect: hashOf("s")})), "")
		if l, err := s.List(t.Context(), "", true); err != nil || len(l.Entries) != 5 || !l.Entries[4].Expired(now) ||
			l.Entries[0].Expired(now) {
			t.Fatalf("list: got %+v, %v", l, err)
		}
		if l, err := s.List(t.Context(), "", false); err != nil || len(l.Entries) != 4 {
			t.Errorf("list without expired entries: got %+v, %v", l, err)
		}
		if l, err := s.List(t.Context(), "k1", false); err != nil || len(l.Entries) != 1 || l.Entries[0].Size != 200 {
			t.Errorf("list of k1: got %+v, %v", l, err)
		}
		gc := func(o GCOptions, keys string, kept int, size int64) {
			t.Helper()
			r, err := s.GC(t.Context(), o)
			var removed []string
			for _, e := range r.Removed {
				removed = append(removed, e.Key)
			}
			if err != nil || strings.Join(removed, " ") != keys || r.Kept != kept || r.Size != size {
				t.Fatalf("gc %+v: got %+v, %v, want removed %q, %d kept with %d bytes", o, r, err, keys, kept, size)
			}
		}
		gc(GCOptions{DryRun: true}, "short", 4, 1000)
		gc(GCOptions{MaxSize: 700, MaxAge: 210 * time.Minute, DryRun: true}, "k0 k1 short", 2, 700)
		gc(GCOptions{}, "short", 4, 1000)
		gc(GCOptions{MaxAge: 210 * time.Minute}, "k0", 3, 900)
		gc(GCOptions{MaxSize: 500}, "k1 k2", 1, 400)
		want(t, s, "k3", strings.Repeat("3", 400))
		gc(GCOptions{MaxSize: 1}, "k3", 0, 0)
		if got := gittest.Must(t, repo, "for-each-ref"); got != "" {
			t.Errorf("refs after gc: %s", got)
		}
	})
}

// TestListFetchesNoValues checks that List of 1,000 entries takes at most 4 requests and fetches no value, even from a
// server without filters.
func TestListFetchesNoValues(t *testing.T) {
	repo := bare(t, "sha1")
	gittest.Must(t, repo, "config", "core.fsync", "none")
	f, err := session.OpenRepo(repo, session.RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var objects []odb.Outgoing
	var changes []session.RefChange
	const count, size = 1000, 4096
	random := rand.New(rand.NewSource(1))
	for i := range count {
		value := make([]byte, size)
		random.Read(value)
		blob, hash, err := text(string(value)).hash(object.SHA1)
		if err != nil {
			t.Fatal(err)
		}
		e := Entry{Key: fmt.Sprintf("key %04d", i), Size: size, Hash: hash, Time: time.Now().UTC()}
		id, parts, err := e.objects(object.SHA1, blob)
		if err != nil {
			t.Fatal(err)
		}
		objects, changes = append(objects, parts...), append(changes, session.RefChange{Name: Ref(e.Key), New: id})
	}
	if err := f.Record(t.Context(), objects, changes); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, repo, "pack-refs", "--all")
	var requests, received atomic.Int64
	s := serve(t, filepath.Dir(repo), func(r gittest.Request) {
		requests.Add(1)
		received.Add(r.BytesOut)
	})
	l, err := remote(t, s.URL("r.git")).List(t.Context(), "key 0", false)
	if err != nil || len(l.Entries) != count || l.Damaged != 0 || l.Entries[7].Key != "key 0007" ||
		l.Entries[7].Size != size {
		t.Fatalf("list: got %d entries, %d damaged, %v", len(l.Entries), l.Damaged, err)
	}
	if n := requests.Load(); n > 4 {
		t.Errorf("list of %d entries sent %d requests, limit is 4", count, n)
	}
	if n := received.Load(); n > count*size/2 {
		t.Errorf("list received %d bytes, values have %d", n, count*size)
	}
}

// TestForeignRefs checks that refs that contain no entry are counted and never returned, and that GC removes them,
// unless a later version has written them.
func TestForeignRefs(t *testing.T) {
	each(t, func(t *testing.T, repo string, open func() *Store) {
		s := open()
		put(t, s, PutRequest{Key: "k", Value: text("one")})
		put(t, s, PutRequest{Key: "lie", Value: text("truth")})
		format, err := object.ParseFormat(gittest.Must(t, repo, "rev-parse", "--show-object-format"))
		if err != nil {
			t.Fatal(err)
		}
		writer, err := session.OpenRepo(repo, session.RepoOptions{Format: format, Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		commit := func(file, content string, parent object.ID) object.ID {
			blob, err := session.Outgoing(format, object.Blob, []byte(content))
			if err != nil {
				t.Fatal(err)
			}
			objects, err := commitOf(format, file, blob, parent, time.Unix(1, 0), "x")
			if err == nil {
				err = writer.Write(t.Context(), append(objects, blob))
			}
			if err != nil {
				t.Fatal(err)
			}
			return objects[1].ID
		}
		good := gittest.Must(t, repo, "cat-file", "blob", Ref("k")+":entry.json")
		value := object.MustID(gittest.Must(t, repo, "rev-parse", Ref("k")+"^"))
		none := object.ID{}
		for name, id := range map[string]object.ID{
			Ref("moved"):   object.MustID(gittest.Must(t, repo, "rev-parse", Ref("k"))),
			Ref("text"):    commit(InfoFile, "no JSON", value),
			Ref("nothing"): commit("other", "x", none),
			Ref("orphan"):  commit(InfoFile, strings.Replace(good, `"k"`, `"orphan"`, 1), none),
			Ref("newer"):   commit(InfoFile, `{"version":2}`, value),
			Ref("lie"):     commit(InfoFile, strings.Replace(good, `"k"`, `"lie"`, 1), commit(ValueFile, "eno", none)),
		} {
			gittest.Must(t, repo, "update-ref", name, id.String())
		}
		for _, key := range []string{"moved", "text", "nothing", "orphan", "lie"} {
			var got bytes.Buffer
			if e, err := open().Get(t.Context(), key, &got); !errors.Is(err, ErrDamaged) {
				t.Errorf("get %s: got %+v, %v", key, e, err)
			}
		}
		if _, err := open().Describe(t.Context(), "newer"); !errors.Is(err, ErrNewer) {
			t.Errorf("get of a newer entry: got %v", err)
		}
		if l, err := open().List(t.Context(), "", true); err != nil || len(l.Entries) != 2 || l.Damaged != 5 {
			t.Errorf("list: got %+v, %v", l, err)
		}
		put(t, open(), PutRequest{Key: "moved", Value: text("repaired"), Expect: None})
		want(t, open(), "moved", "repaired")
		r, err := open().GC(t.Context(), GCOptions{})
		if err != nil || r.Damaged != 3 || len(r.Removed) != 0 || r.Kept != 3 {
			t.Errorf("gc: got %+v, %v", r, err)
		}
		want(t, open(), "k", "one")
		gittest.Must(t, repo, "rev-parse", "--verify", Ref("newer"))
	})
}

func TestInvalidRequests(t *testing.T) {
	s := remote(t, bare(t, "sha1"))
	for _, key := range []string{"", strings.Repeat("k", MaxKey+1), "a\nb", "\xff"} {
		if _, err := s.Put(t.Context(), PutRequest{Key: key, Value: text("x")}); !errors.Is(err, ErrKey) {
			t.Errorf("put of the key %.10q: got %v", key, err)
		}
	}
	if _, err := s.Put(t.Context(), PutRequest{Key: "k", Value: text("x"), Expect: "abc"}); !errors.Is(err, ErrExpect) {
		t.Errorf("put with an invalid hash: got %v", err)
	}
	if _, err := s.Put(t.Context(), PutRequest{Key: "k", Value: Value{Size: MaxValue + 1}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("put of a large value: got %v", err)
	}
	long := strings.Repeat("\u2028", MaxKey/3) // six bytes each in JSON
	put(t, s, PutRequest{Key: long, Value: text("x"), Actor: strings.Repeat("a", 300)})
	want(t, s, long, "x")
}

func FuzzDecode(f *testing.F) {
	ref := Ref("k")
	text, err := Entry{Key: "k", Hash: hashOf(""), Time: time.Unix(1, 0)}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"key":"k","size":-1}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Parse(ref, text)
		if err != nil {
			return
		}
		again, err := e.encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Parse(ref, again); err != nil || back.Key != e.Key || back.Hash != e.Hash ||
			!back.Time.Equal(e.Time) {
			t.Fatalf("got %+v, %v, want %+v", back, err, e)
		}
	})
}
