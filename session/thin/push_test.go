package thin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// place is an empty session remote in a directory, together with the directory in which one host stores the state of
// the container. The refs in the container point to blobs, because no server checks them.
type place struct {
	t         *testing.T
	dir, kept string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &place{t, repo.Path, t.TempDir()}
}

// open returns the session remote as a new process opens it that stores its state in the directory kept.
func (p *place) open(name, kept string) *Remote {
	p.t.Helper()
	remote, err := transport.Open(p.dir, transport.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	r := New(remote, name, nil)
	r.Keep(kept)
	p.t.Cleanup(func() { r.Close() })
	return r
}

// blob returns a blob with the given text.
func (p *place) blob(text string) odb.Outgoing {
	p.t.Helper()
	o, err := session.Outgoing(object.SHA1, object.Blob, []byte(text))
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

// load returns a Load that sends the blobs in one pack.
func (p *place) load(blobs ...odb.Outgoing) Load {
	l := Load{Base: Base{URL: "https://git.example/app.git", Commits: []object.ID{id(1)}}}
	for _, b := range blobs {
		l.Contained = append(l.Contained, b.ID)
	}
	l.Write = func(ctx context.Context, dir string, ids []object.ID) (map[string][]object.ID, error) {
		name := filepath.Join(dir, "0.pack")
		f, err := os.Create(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return map[string][]object.ID{name: ids}, odb.WritePack(ctx, f, object.SHA1, blobs)
	}
	return l
}

// push opens a push to the container and sends the updates. It returns the result of each update.
func (p *place) push(r *Remote, load Load, updates ...transport.RefUpdate) []error {
	p.t.Helper()
	push, err := r.OpenPush(p.t.Context(), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer push.Close()
	if !push.Thin() {
		if err := push.UseContainer(); err != nil {
			p.t.Fatal(err)
		}
	}
	results, err := push.Send(p.t.Context(), transport.PushRequest{Updates: updates, Atomic: push.Atomic}, load)
	if err != nil {
		p.t.Fatal(err)
	}
	return results
}

// mustPush does the same as push, and fails the test unless all updates are accepted.
func (p *place) mustPush(r *Remote, load Load, updates ...transport.RefUpdate) {
	p.t.Helper()
	for i, err := range p.push(r, load, updates...) {
		if err != nil {
			p.t.Fatalf("push of %s: got %v, want it accepted", updates[i].Name, err)
		}
	}
}

// want fails the test unless r lists exactly the expected branches.
func (p *place) want(what string, r *Remote, want map[string]object.ID) {
	p.t.Helper()
	refs, err := r.Refs(p.t.Context(), []string{"refs/heads/"})
	if err != nil {
		p.t.Fatalf("%s: list refs: %v", what, err)
	}
	got := map[string]object.ID{}
	for _, ref := range refs.List {
		got[strings.TrimPrefix(ref.Name, "refs/heads/")] = ref.ID
	}
	if len(got) != len(want) {
		p.t.Errorf("%s: got branches %v, want %v", what, got, want)
	}
	for name, id := range want {
		if got[name] != id {
			p.t.Errorf("%s: branch %s: got %s, want %s", what, name, got[name], id)
		}
	}
}

// extracted reports whether r has fetched a container.
func extracted(r *Remote) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unpacked != nil
}

func create(branch string, o odb.Outgoing) transport.RefUpdate {
	return transport.RefUpdate{Name: "refs/heads/" + branch, New: o.ID}
}

func wantMoved(t *testing.T, what string, results []error) {
	t.Helper()
	for _, err := range results {
		var refused *transport.Rejected
		if !errors.As(err, &refused) || refused.Kind != transport.RejectMoved {
			t.Errorf("%s: got result %v, want that the ref has moved", what, err)
		}
	}
}

// TestStateOfPush checks that a host that has pushed a container does not fetch it again, even if the process ended
// before the answer of the server, because the state is written before the push. A state of another session, of another
// remote, or that is damaged is ignored.
func TestStateOfPush(t *testing.T) {
	p := newPlace(t)
	one, two := p.blob("one"), p.blob("two")
	p.mustPush(p.open("work", p.kept), p.load(one), create("main", one))
	// The hook copies the state while the server handles the push.
	early := t.TempDir()
	hook := "#!/bin/sh\ncp '" + filepath.Join(p.kept, stateName) + "' '" + early + "'\n"
	if err := os.WriteFile(filepath.Join(p.dir, "hooks", "update"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	p.mustPush(p.open("work", p.kept), p.load(two), create("side", two))
	want := map[string]object.ID{"main": one.ID, "side": two.ID}
	for name, dir := range map[string]string{"a complete push": p.kept, "a push whose answer was lost": early} {
		r := p.open("work", dir)
		p.want("after "+name, r, want)
		if extracted(r) {
			t.Errorf("after %s: the container was fetched again", name)
		}
	}
	text, err := os.ReadFile(filepath.Join(p.kept, stateName))
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"no state":        "",
		"another remote":  strings.ReplaceAll(string(text), p.dir, "/elsewhere"),
		"another session": strings.ReplaceAll(string(text), `"work"`, `"play"`),
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, stateName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := p.open("work", dir)
		p.want("with the state of "+what, r, want)
		if !extracted(r) {
			t.Errorf("with the state of %s: the container was not fetched", what)
		}
	}
}

// TestPushOfStaleRefs checks that a push in which the expected value of one ref is outdated changes nothing: neither
// refs on the server, nor the contents of later pushes of the process.
func TestPushOfStaleRefs(t *testing.T) {
	p := newPlace(t)
	one, two := p.blob("one"), p.blob("two")
	r := p.open("work", p.kept)
	p.mustPush(r, p.load(one), create("main", one))
	before := gittest.Must(t, p.dir, "rev-parse", Ref("work"))
	// The first update is valid. The second one expects a branch that does not exist.
	wantMoved(t, "push of a stale ref", p.push(r, p.load(two), create("side", two),
		transport.RefUpdate{Name: "refs/heads/gone", Old: one.ID, New: two.ID}))
	wantMoved(t, "push that creates a branch again", p.push(r, p.load(two), create("main", two)))
	if now := gittest.Must(t, p.dir, "rev-parse", Ref("work")); now != before {
		t.Errorf("container after refused pushes: got %s, want %s unchanged", now, before)
	}
	p.mustPush(r, p.load(two), create("third", two), transport.RefUpdate{Name: "refs/heads/main", Old: one.ID})
	p.want("after the next push", p.open("work", t.TempDir()), map[string]object.ID{"third": two.ID})
}

// TestConcurrentPushes checks that of two hosts that have opened a push at the same time, the second one is refused.
// This is so even if it has read the container of the first one in the meantime, because its caller has decided by the
// older refs.
func TestConcurrentPushes(t *testing.T) {
	p := newPlace(t)
	one, two, three := p.blob("one"), p.blob("two"), p.blob("three")
	fast, slow := p.open("work", p.kept), p.open("work", t.TempDir())
	p.mustPush(fast, p.load(one), create("main", one))
	want := map[string]object.ID{"main": one.ID}
	for _, meanwhile := range []string{"nothing", "list"} {
		push, err := slow.OpenPush(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer push.Close()
		p.mustPush(fast, p.load(two), create("fast-"+meanwhile, two))
		want["fast-"+meanwhile] = two.ID
		if meanwhile == "list" {
			p.want("in the meantime", slow, want)
		}
		update := create("slow-"+meanwhile, three)
		req := transport.PushRequest{Updates: []transport.RefUpdate{update}}
		results, err := push.Send(t.Context(), req, p.load(three))
		if err != nil {
			t.Fatal(err)
		}
		wantMoved(t, "the second of two pushes, meanwhile "+meanwhile, results)
		p.mustPush(slow, p.load(three), update)
		want["slow-"+meanwhile] = three.ID
		p.want("after both, meanwhile "+meanwhile, fast, want)
	}
}

// TestRewriteOnAServerOfFastForwards checks that a rewritten container has no parent. If the server accepts only
// fast-forwards, the next attempt gives it a parent, and the request to rewrite the container remains until a push has
// fulfilled it.
func TestRewriteOnAServerOfFastForwards(t *testing.T) {
	p := newPlace(t)
	one, two := p.blob("one"), p.blob("two")
	r := p.open("work", p.kept)
	p.mustPush(r, p.load(one), create("main", one))
	// Git refuses pushes that are not fast-forwards only for branches. Other servers refuse them for all refs, with
	// this text.
	refusal := "ng " + Ref("work") + " non-fast-forward"
	hook := fmt.Sprintf("#!/bin/sh\nprintf '000eversion=1\\n0000%04x%s0000'\ncat >/dev/null\n", 4+len(refusal), refusal)
	if err := os.WriteFile(filepath.Join(p.dir, "hooks", "proc-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, p.dir, "config", "receive.procReceiveRefs", "refs/afs")
	if _, err := Rewrite(p.kept); err != nil {
		t.Fatal(err)
	}
	load := p.load(two)
	load.All = func(context.Context, map[string]object.ID) ([]object.ID, bool, error) {
		return []object.ID{two.ID}, true, nil
	}
	updates := []transport.RefUpdate{create("side", two), {Name: "refs/heads/main", Old: one.ID}}
	wantMoved(t, "push of a container without a parent", p.push(r, load, updates...))
	if !r.rewriting() {
		t.Error("the request for rewriting is gone after a push that was refused")
	}
	gittest.Must(t, p.dir, "config", "--unset", "receive.procReceiveRefs")
	p.mustPush(r, load, updates...)
	if r.rewriting() {
		t.Error("the request for rewriting is still there after a push that has fulfilled it")
	}
	if n := gittest.Must(t, p.dir, "rev-list", "--count", Ref("work")); n != "2" {
		t.Errorf("commits of the container: got %s, want 2", n)
	}
	packs := strings.Fields(gittest.Must(t, p.dir, "ls-tree", "--name-only", Ref("work")+":pack"))
	if len(packs) != 1 || packs[0] != packName(1) {
		t.Errorf("packs of the rewritten container: got %q, want only %s", packs, packName(1))
	}
}

// TestReadableBranchIsRefused checks that a server that refuses the readable branch gets the container nevertheless, at
// the first or second attempt, and that the branch is not pushed to it again.
func TestReadableBranchIsRefused(t *testing.T) {
	p := newPlace(t)
	one, two := p.blob("one"), p.blob("two")
	hook := "#!/bin/sh\ncase $1 in refs/heads/*) exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(p.dir, "hooks", "update"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	made := 0
	load := func(o odb.Outgoing) Load {
		l := p.load(o)
		l.Readable = func(context.Context, string, object.ID, bool) (Readable, error) {
			made++
			return Readable{Tip: o.ID, Pack: packOf(object.SHA1, []odb.Outgoing{o}),
				Pushed: func() { t.Error("the refused branch counts as pushed") }}, nil
		}
		return l
	}
	r := p.open("work", p.kept)
	results := p.push(r, load(one), create("main", one))
	if results[0] != nil {
		wantMoved(t, "push with a branch that is refused", results)
		p.mustPush(r, load(one), create("main", one))
	}
	p.mustPush(r, load(two), create("side", two))
	if made != 1 {
		t.Errorf("readable branches: %d were made, want 1", made)
	}
	p.want("after the pushes", p.open("work", t.TempDir()), map[string]object.ID{"main": one.ID, "side": two.ID})
}

// TestBasesFail checks that a push succeeds although no pack of objects of the mounted repository can be made.
func TestBasesFail(t *testing.T) {
	p := newPlace(t)
	one := p.blob("one")
	load := p.load(one)
	load.Bases = func(_ context.Context, dir string, all bool) error {
		err := os.WriteFile(filepath.Join(dir, "half.pack"), []byte("PACK"), 0o600)
		return errors.Join(err, errors.New("no space left"))
	}
	p.mustPush(p.open("work", p.kept), load, create("main", one))
	if files := gittest.Must(t, p.dir, "ls-tree", "--name-only", Ref("work")); files != manifestName+"\n"+packDir {
		t.Errorf("files of the container: got %q, want the manifest and the packs", files)
	}
}

// TestAdopt checks that a host that continues a session of another host gets its objects. After Adopt, it does not
// fetch the container again, and it also joins packs of the other host.
func TestAdopt(t *testing.T) {
	p := newPlace(t)
	one, two := p.blob("one"), p.blob("two")
	p.mustPush(p.open("work", p.kept), p.load(one, two), create("main", one))
	mine := t.TempDir()
	r := p.open("work", mine)
	p.want("the other host", r, map[string]object.ID{"main": one.ID})
	resp, err := r.Fetch(t.Context(), transport.FetchRequest{Wants: []object.ID{one.ID, two.ID}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Pack.Close()
	into, err := odb.Open(t.TempDir(), object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	if _, err := into.Ingest(t.Context(), resp.Pack, odb.IngestOptions{MaxObjectSize: 1 << 20}, nil); err != nil {
		t.Fatal(err)
	}
	if !into.Has(one.ID) || !into.Has(two.ID) {
		t.Error("the fetched pack lacks objects of the container")
	}
	if err := r.Adopt(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = p.open("work", mine)
	p.want("after Adopt", r, map[string]object.ID{"main": one.ID})
	if extracted(r) {
		t.Error("the container was fetched again after Adopt")
	}
	if ids, ok := r.readIDs(packName(0)); !ok || !slices.Contains(ids, one.ID) || !slices.Contains(ids, two.ID) {
		t.Errorf("recorded objects of the other host's pack: got %v, %v, want %v and %v", ids, ok, one.ID, two.ID)
	}
	if _, err := os.Stat(filepath.Join(mine, "objects")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("extracted container after Close: got %v, want it removed", err)
	}
}

// TestForeignContainers checks that an error is returned if the ref of a container points to the container of another
// session, or to a container whose manifest lacks a pack.
func TestForeignContainers(t *testing.T) {
	p := newPlace(t)
	one := p.blob("one")
	p.mustPush(p.open("work", p.kept), p.load(one), create("main", one))
	gittest.Must(t, p.dir, "update-ref", Ref("play"), Ref("work"))
	list := func(name string) error {
		_, err := p.open(name, t.TempDir()).Refs(t.Context(), nil)
		return err
	}
	if err := list("play"); !errors.Is(err, ErrContainer) {
		t.Errorf("refs of the container of another session: got %v, want %v", err, ErrContainer)
	}
	blob := gittest.Must(t, p.dir, "rev-parse", Ref("work")+":"+packDir+"/"+packName(0))
	gittest.Must(t, p.dir, "read-tree", Ref("work"))
	gittest.Must(t, p.dir, "update-index", "--add", "--cacheinfo", "100644,"+blob+","+packDir+"/"+packName(9))
	commit := gittest.Must(t, p.dir, "commit-tree", "-m", "more packs", gittest.Must(t, p.dir, "write-tree"))
	gittest.Must(t, p.dir, "update-ref", Ref("work"), commit)
	if err := list("work"); !errors.Is(err, ErrContainer) {
		t.Errorf("refs of a container with a pack that its manifest lacks: got %v, want %v", err, ErrContainer)
	}
}
