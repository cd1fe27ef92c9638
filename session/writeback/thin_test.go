package writeback

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

const baseURL = "https://git.example/app.git"

// TestThin checks that in thin mode an empty session remote receives only owned objects, and all refs in a container,
// which is a commit that stock git servers accept.
func TestThin(t *testing.T) {
	for _, kind := range []string{"path", "http", "ssh"} {
		for _, f := range formatsOf(kind) {
			t.Run(kind+"/"+f.String(), func(t *testing.T) {
				p := newPlace(t, f)
				to := newTestRemote(t, kind, f, "")
				p.copier()
				one := p.Commit("d/new.txt", "one")
				p.Carried(one)
				checkpoint := p.Checkpoint("manual")
				q := p.queue(to, QueueOptions{BaseURL: baseURL})
				wantSync(t, q)
				if !q.Has(checkpoint) || q.Status().Mode != ModeThin {
					t.Errorf("status after sync: got %+v", q.Status())
				}
				if st := q.Status().Traffic; st.Sent == 0 || st.Received == 0 || st.Seeded != 0 {
					t.Errorf("traffic: got %+v, want bytes sent and received, and none for seeding", st)
				}
				refs := run(t, to.dir, "", "for-each-ref", "--format=%(refname)")
				if refs != thin.Ref(sessionName)+"\n"+thin.ReadableRef(sessionName) {
					t.Errorf("refs of the session remote: got %s", refs)
				}
				run(t, to.dir, "", "fsck", "--strict")
				if _, err := try(t, to.dir, "", "cat-file", "-e", p.Base.String()); err == nil {
					t.Errorf("the session remote has the objects of the base")
				}
				// Another machine lists the same refs, and can fetch their objects.
				other := to.open(transport.Options{})
				seen, err := other.Refs(t.Context(), []string{"refs/heads/", session.LanePrefix(sessionName)})
				if err != nil || len(seen.List) != 2 || seen.List[1].ID != one {
					t.Fatalf("refs that another machine lists: got %+v, %v", seen.List, err)
				}
				if base := other.Base(); base.URL != baseURL || len(base.Commits) != 1 || base.Commits[0] != p.Base {
					t.Errorf("base that another machine reads: got %+v, want %s at %s", base, p.Base, baseURL)
				}
				resp, err := other.Fetch(t.Context(), transport.FetchRequest{Wants: []object.ID{one, checkpoint.Commit}})
				if err != nil {
					t.Fatal(err)
				}
				into := p.ingest(resp)
				for _, id := range []object.ID{one, checkpoint.Commit} {
					if !into.Has(id) {
						t.Errorf("object %s was not fetched", id)
					}
				}
				var none transport.NotOurRef
				if _, err := other.Fetch(t.Context(), transport.FetchRequest{Wants: []object.ID{p.Base}}); !errors.As(err, &none) ||
					none.ID != p.Base {
					t.Errorf("fetch of the base: got %v, want not found", err)
				}
				// A new branch is added to the refs, and removed again.
				run(t, p.Work, "", "branch", "-q", "side")
				await.Until(t, "the copier has copied the change", func() bool { return p.InSession("refs/heads/side") != "" })
				wantSync(t, q)
				run(t, p.Work, "", "branch", "-qD", "side")
				await.Until(t, "the copier has copied the change", func() bool { return p.InSession("refs/heads/side") == "" })
				wantSync(t, q)
				if seen, err = to.open(transport.Options{}).Refs(t.Context(), []string{"refs/heads/"}); err != nil ||
					len(seen.List) != 1 {
					t.Errorf("refs after a branch was removed: got %+v, %v", seen.List, err)
				}
			})
		}
	}
}

// TestThinFetchesOrdinaryRefsThatMoved checks that an ordinary ref is fetched that has changed since this process
// listed it, so that its commit is not in the container.
func TestThinFetchesOrdinaryRefsThatMoved(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	p.copier()
	p.Carried(p.Commit("a", "one"))
	sender, reader := to.open(transport.Options{}), to.open(transport.Options{})
	wantSync(t, p.queue(to, QueueOptions{Remote: sender, BaseURL: baseURL}))
	if _, err := reader.Refs(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	tree := run(t, to.dir, "", "hash-object", "-t", "tree", "-w", "/dev/null")
	moved := object.MustID(run(t, to.dir, "", "-c", "user.name=a", "-c", "user.email=a@b", "commit-tree", "-m",
		"moved", tree))
	run(t, to.dir, "", "update-ref", session.MetaRef(sessionName), moved.String())
	for name, remote := range map[string]*thin.Remote{"sent the container": sender, "fetched the container": reader} {
		resp, err := remote.Fetch(t.Context(), transport.FetchRequest{Wants: []object.ID{moved}})
		if err != nil {
			t.Errorf("fetch by a process that %s: got %v", name, err)
		} else if !p.ingest(resp).Has(moved) {
			t.Errorf("fetch by a process that %s: commit %s was not fetched", name, moved)
		}
	}
}

// TestThinManyPushes checks that each push sends only new objects, that small packs are joined, and that the total
// number of bytes remains proportional to the commits.
func TestThinManyPushes(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, "")
	p.copier()
	p.Carried(p.Commit("a", "0"))
	q := p.queue(to, QueueOptions{BaseURL: baseURL})
	wantSync(t, q)
	const pushes = 40
	for i := range pushes {
		p.Carried(p.Commit("a", fmt.Sprint(i+1)))
		if i == 20 { // another process continues
			q = p.reopen(q, to, QueueOptions{BaseURL: baseURL})
		}
		wantSync(t, q)
	}
	packs := strings.Fields(run(t, to.dir, "", "ls-tree", "--name-only", thin.Ref(sessionName), "pack/"))
	if len(packs) == 0 || len(packs) > 33 {
		t.Errorf("got %d packs after %d pushes, want at most 33", len(packs), pushes)
	}
	if n := q.Status().Traffic.Sent; n > 2<<20 {
		t.Errorf("bytes sent for %d small commits: got %d, want at most 2 MiB", pushes, n)
	}
	run(t, to.dir, "", "fsck", "--strict")
	resp, err := to.open(transport.Options{}).Fetch(t.Context(),
		transport.FetchRequest{Wants: []object.ID{object.MustID(p.InSession("refs/heads/main"))}})
	if err == nil {
		resp.Pack.Close()
		t.Errorf("fetch of a commit that is in no listing: the session remote has the commit outside of the container")
	}
	other := to.open(transport.Options{})
	if _, err := other.Refs(t.Context(), []string{"refs/heads/"}); err != nil {
		t.Fatal(err)
	}
	if resp, err = other.Fetch(t.Context(),
		transport.FetchRequest{Wants: []object.ID{object.MustID(p.InSession("refs/heads/main"))}}); err != nil {
		t.Fatal(err)
	}
	into := p.ingest(resp)
	for id := object.MustID(p.InSession("refs/heads/main")); id != p.Base; {
		_, content, err := into.Get(id, object.MaxCommitSize)
		if err != nil {
			t.Fatalf("commit %s is not in the container: %v", id, err)
		}
		info, err := object.ParseCommit(object.SHA1, content)
		if err != nil {
			t.Fatal(err)
		}
		id = info.Parents[0]
	}
}

// TestThinMovedByOthers checks that two machines that push at the same time do not overwrite each other: the second one
// finds the refs changed, and pushes its refs to other names.
func TestThinMovedByOthers(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	p.copier()
	one := p.Commit("a", "one")
	p.Carried(one)
	q := p.queue(to, QueueOptions{BaseURL: baseURL})
	wantSync(t, q)
	// Another machine replaces the container by a push.
	other := to.open(transport.Options{})
	push, err := other.OpenPush(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer push.Close()
	results, err := push.Send(t.Context(),
		transport.PushRequest{Updates: []transport.RefUpdate{{Name: "refs/heads/theirs", New: one}}},
		thin.Load{Base: thin.Base{URL: baseURL}})
	if err != nil || results[0] != nil {
		t.Fatalf("push another branch: got %v, %v", results, err)
	}
	two := p.Commit("a", "two")
	p.Carried(two)
	wantSync(t, q)
	seen, err := to.open(transport.Options{}).Refs(t.Context(), []string{"refs/heads/"})
	if err != nil || len(seen.List) != 2 || seen.List[0].ID != two || seen.List[1].Name != "refs/heads/theirs" {
		t.Errorf("refs after both pushes: got %+v, %v", seen.List, err)
	}
}

// TestThinRewrite checks that after checkpoints were removed, the container has only objects that are reachable from
// its refs.
func TestThinRewrite(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	p.copier()
	dropped := p.Commit("a", strings.Repeat("dropped ", 100))
	p.Carried(dropped)
	q := p.queue(to, QueueOptions{BaseURL: baseURL})
	wantSync(t, q)
	run(t, p.Work, "", "commit", "-q", "--amend", "--allow-empty", "-m", "other")
	p.Carried(object.MustID(run(t, p.Work, "", "rev-parse", "HEAD")))
	wantSync(t, q) // a push in progress would count as the one that Rewrite requests
	kept, err := q.o.Repo.Refs(session.KeptPrefix(sessionName))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept commits: got %v, %v", kept, err)
	}
	if _, err := thin.Rewrite(to.kept); err != nil {
		t.Fatal(err)
	}
	if err := q.o.Repo.Update(t.Context(), []session.RefChange{{Name: kept[0].Name, Old: kept[0].ID}}); err != nil {
		t.Fatal(err)
	}
	wantSync(t, q)
	if n := run(t, to.dir, "", "rev-list", "--count", thin.Ref(sessionName)); n != "1" {
		t.Errorf("commits of the container: got %s, want 1", n)
	}
	other := to.open(transport.Options{})
	seen, err := other.Refs(t.Context(), []string{"refs/heads/"})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := other.Fetch(t.Context(), transport.FetchRequest{Wants: []object.ID{seen.List[0].ID}})
	if err != nil {
		t.Fatal(err)
	}
	if p.ingest(resp).Has(dropped) {
		t.Errorf("object %s is in the container, but not reachable from a ref", dropped)
	}
}

// TestModeIsKept checks that a session keeps the mode that was chosen at its first push, and that thin mode requires a
// mounted remote that other machines can read.
func TestModeIsKept(t *testing.T) {
	p := newPlace(t, object.SHA1)
	p.copier()
	p.Carried(p.Commit("a", "one"))
	for _, c := range []struct {
		name string
		full bool
		o    QueueOptions
		want Mode
	}{
		{"empty", false, QueueOptions{BaseURL: baseURL}, ModeThin},
		{"empty, base on this host", false, QueueOptions{}, ModeSeed},
		{"empty, seed", false, QueueOptions{BaseURL: baseURL, Base: ModeSeed}, ModeSeed},
		{"empty, thin", false, QueueOptions{Base: ModeThin}, ModeThin},
		{"full", true, QueueOptions{BaseURL: baseURL}, ModeShared},
		{"full, thin", true, QueueOptions{BaseURL: baseURL, Base: ModeThin}, ModeThin},
	} {
		from := ""
		if c.full {
			from = p.Origin.Path
		}
		to := newTestRemote(t, "path", object.SHA1, from)
		q := p.queue(to, c.o)
		wantSync(t, q)
		q.Close()
		if got := q.Status().Mode; got != c.want {
			t.Errorf("case %s: got mode %q, want %q", c.name, got, c.want)
		}
		c.o.Base = ModeSeed
		q = p.queue(to, c.o)
		wantSync(t, q)
		if got := q.Status().Mode; got != c.want {
			t.Errorf("case %s: got mode %q after a new start, want %q", c.name, got, c.want)
		}
		q.Close()
	}
	to := newTestRemote(t, "http", object.SHA1, "")
	q := p.queue(to, QueueOptions{BaseURL: to.open(transport.Options{}).URL()})
	wantSync(t, q)
	if got := q.Status().Mode; got == ModeThin {
		t.Errorf("the empty mounted remote itself as session remote: got mode %q", got)
	}
	q.Close()
	q = p.queue(newTestRemote(t, "path", object.SHA1, ""), QueueOptions{BaseURL: baseURL, Base: ModeShared})
	if err := syncAll(t, q); !errors.Is(err, errNoBase) {
		t.Errorf("shared mode with a session remote that lacks the base: got %v", err)
	}
}

// formatsOf returns the object formats with which a kind of session remote is tested. SHA-256 is tested without a server:
// no transport looks at ids.
func formatsOf(kind string) []object.Format {
	if kind != "path" {
		return []object.Format{object.SHA1}
	}
	return []object.Format{object.SHA1, object.SHA256}
}

// TestThinPushFails checks that a push that cannot write its objects returns an error, and removes the files that it
// has written.
func TestThinPushFails(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, "")
	one := p.Commit("a", "one")
	remote := to.open(transport.Options{})
	dir := t.TempDir()
	remote.Keep(dir)
	push, err := remote.OpenPush(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer push.Close()
	if err := push.UseContainer(); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	write := func(context.Context, string, []object.ID) (map[string][]object.ID, error) { return nil, full }
	_, err = push.Send(t.Context(),
		transport.PushRequest{Updates: []transport.RefUpdate{{Name: "refs/heads/main", New: one}}},
		thin.Load{Base: thin.Base{URL: baseURL}, Contained: []object.ID{one}, Write: write})
	if !errors.Is(err, full) {
		t.Errorf("push whose objects cannot be written: got %v, want %v", err, full)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files that the push has left: got %v, %v, want none", left, err)
	}
}

// TestThinContainerIsDamaged checks that a container with damaged packs is an error, whichever host has written it.
func TestThinContainerIsDamaged(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, "")
	p.copier()
	p.Carried(p.Commit("a", "one"))
	wantSync(t, p.queue(to, QueueOptions{BaseURL: baseURL}))
	container := thin.Ref(sessionName)
	pack := run(t, to.dir, "", "ls-tree", "--name-only", container, "pack/")
	blob := run(t, to.dir, "", "rev-parse", container+":"+pack)
	size, err := strconv.Atoi(run(t, to.dir, "", "cat-file", "-s", blob))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"another size": "PACK", "no pack": strings.Repeat("x", size)} {
		other := run(t, to.dir, content, "hash-object", "-w", "--stdin")
		text := strings.ReplaceAll(run(t, to.dir, "", "show", container+":container.json"), blob, other)
		file := run(t, to.dir, text, "hash-object", "-w", "--stdin")
		packs := run(t, to.dir, fmt.Sprintf("100644 blob %s\t%s\n", other, strings.TrimPrefix(pack, "pack/")), "mktree")
		tree := run(t, to.dir, fmt.Sprintf("100644 blob %s\tcontainer.json\n040000 tree %s\tpack\n", file, packs), "mktree")
		commit := run(t, to.dir, "", "-c", "user.name=a", "-c", "user.email=a@b", "commit-tree", "-m", "damaged", tree)
		run(t, to.dir, "", "update-ref", "refs/heads/damaged", commit)
		run(t, to.dir, "", "update-ref", container, commit)
		if seen, err := to.open(transport.Options{}).Refs(t.Context(), []string{"refs/heads/"}); !errors.Is(err,
			thin.ErrContainer) {
			t.Errorf("refs of a container whose pack is %s: got %+v, %v, want %v", name, seen.List, err, thin.ErrContainer)
		}
	}
}
