package writeback

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/internal/gittest"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/transport"
)

func TestMain(m *testing.M) {
	// Neither the user's nor the machine's git configuration may have a say.
	home, err := os.MkdirTemp("", "writeback-home")
	if err != nil {
		panic(err)
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "GIT_") && name != "GIT_EXEC_PATH" {
			os.Unsetenv(name)
		}
	}
	os.Setenv("HOME", home)
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	code := m.Run()
	os.RemoveAll(home)
	os.Exit(code)
}

// far is a session remote.
type far struct {
	t      testing.TB
	dir    string
	url    string
	server *gittest.Server // nil: a path
}

// newFar makes an empty session remote, or with the history of a repository.
func newFar(t testing.TB, kind string, f object.Format, from string) *far {
	t.Helper()
	root := t.TempDir()
	r := &far{t: t, dir: filepath.Join(root, "far")}
	if from != "" {
		run(t, root, "", "clone", "-q", "--bare", from, r.dir)
	} else {
		run(t, root, "", "init", "-q", "--bare", "-b", "main", "--object-format="+f.String(), r.dir)
	}
	run(t, r.dir, "", "config", "http.receivepack", "true")
	run(t, r.dir, "", "config", "gc.auto", "0")
	var err error
	switch kind {
	case "path":
		r.url = r.dir
		return r
	case "http":
		r.server, err = gittest.Serve(gittest.ServerOptions{Root: root})
	case "ssh":
		var command string
		if r.server, command, err = gittest.ServeSSH(gittest.ServerOptions{Root: root}); err == nil {
			t.Setenv("GIT_SSH_COMMAND", command)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.server.Close() })
	r.url = r.server.URL("far")
	return r
}

func (r *far) ref(name string) string {
	out, err := try(r.t, r.dir, "", "rev-parse", "-q", "--verify", name)
	if err != nil {
		return ""
	}
	return out
}

// unlock removes the locks that are left of processes of the server's: it kills those whose client has gone, as no other
// server does.
func (r *far) unlock() {
	r.t.Helper()
	r.server.Down()
	locks := strings.Fields(run(r.t, r.dir, "", "-c", "alias.x=!find . -name '*.lock' -delete -print", "x"))
	if len(locks) > 0 {
		r.t.Logf("locks left: %v", locks)
	}
	if err := r.server.Up(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *far) open(o transport.Options) *transport.Remote {
	r.t.Helper()
	remote, err := transport.Open(r.url, o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { remote.Close() })
	return remote
}

// queue begins one. It is closed before the remote, and can be earlier.
func (p *place) queue(to *far, o QueueOptions) *Queue {
	p.t.Helper()
	repo, err := p.open()
	if err != nil {
		p.t.Fatal(err)
	}
	o.Repo, o.Session, o.Dir = repo, sessionName, p.t.TempDir()
	if o.Remote == nil {
		o.Remote = to.open(transport.Options{})
	}
	if o.Origin == nil {
		origin, err := transport.Open("file://"+p.origin.Path, transport.Options{})
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { origin.Close() })
		o.Origin = origin
	}
	o.Log = zaptest.NewLogger(p.t)
	q, err := NewQueue(o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { q.Close() })
	return q
}

// carried waits for the carrier.
func (p *place) carried(id object.ID) {
	p.t.Helper()
	await(p.t, "the carrier", func() bool { return p.inSession("refs/heads/main") == id.String() })
}

// syncAll waits for a queue, with patience.
func syncAll(t testing.TB, q *Queue) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return q.Sync(ctx, nil)
}

func wantSync(t testing.TB, q *Queue) {
	t.Helper()
	if err := syncAll(t, q); err != nil {
		t.Fatalf("sync: %v (%+v)", err, q.Status())
	}
	if st := q.Status(); st.Pending != 0 || st.Failure != nil || st.LastSync.IsZero() {
		t.Fatalf("after sync: %+v", st)
	}
}

// point makes a point of a tree, as a capturer does: a state, and a commit behind the point before.
func (p *place) point(reason string) session.Point {
	p.t.Helper()
	repo, err := p.open()
	if err != nil {
		p.t.Fatal(err)
	}
	tree := run(p.t, p.work, "", "write-tree", "--missing-ok")
	state := run(p.t, p.work, "", "commit-tree", "-m", "state", tree)
	ref := session.SegmentRef(sessionName, "main", 1)
	before, err := repo.Ref(ref)
	if err != nil {
		p.t.Fatal(err)
	}
	point := session.Point{ID: session.NewPointID(time.Now()), Tree: object.MustID(tree), State: object.MustID(state), Session: sessionName,
		Lane: "main", Segment: 1, Reason: session.Reason(reason), Time: time.Now(), Base: p.base, Head: p.base}
	content := point.Encode(before)
	point.Commit = object.MustID(run(p.t, p.work, string(content), "hash-object", "-w", "-t", "commit", "--stdin"))
	copies := session.NewCopier(repo)
	if err := copies.Commits(p.t.Context(), []object.ID{point.Commit}); err != nil {
		p.t.Fatal(err)
	}
	if err := repo.Write(p.t.Context(), copies.Objects()); err != nil {
		p.t.Fatal(err)
	}
	if err := repo.Update(p.t.Context(), []session.RefChange{{Name: ref, Old: before, New: point.Commit}}); err != nil {
		p.t.Fatal(err)
	}
	return point
}

func TestQueue(t *testing.T) {
	for _, kind := range []string{"path", "http", "ssh"} {
		for _, f := range []object.Format{object.SHA1, object.SHA256} {
			t.Run(fmt.Sprintf("%s/%v", kind, f), func(t *testing.T) {
				p := newPlace(t, f)
				to := newFar(t, kind, f, p.origin.Path)
				p.carrier(CarrierOptions{})
				one := p.commit("d/new.txt", "one")
				q := p.queue(to, QueueOptions{})
				await(t, "the first commit", func() bool { return to.ref("refs/heads/main") == one.String() })
				point := p.point("manual")
				start := time.Now()
				two := p.commit("two.txt", "two")
				await(t, "the second commit", func() bool { return to.ref("refs/heads/main") == two.String() })
				t.Logf("on the session remote within %v", time.Since(start))
				wantSync(t, q)
				if got := to.ref(session.SegmentRef(sessionName, "main", 1)); got != point.Commit.String() || !q.Has(point) {
					t.Errorf("point %v is %q there", point.Commit, got)
				}
				if st := q.Status(); st.Mode != ModeShared {
					t.Errorf("mode %q", st.Mode)
				}
				// Rewritten: the remote's branch is as we left it, so it follows, and the old tip is kept.
				three := p.commit("two.txt", "three", "--amend")
				run(t, p.work, "", "branch", "topic")
				run(t, p.work, "", "tag", "-a", "-m", "v", "v1")
				await(t, "the amended commit", func() bool { return to.ref("refs/heads/main") == three.String() })
				await(t, "the tag", func() bool { return to.ref("refs/tags/v1") != "" })
				wantSync(t, q)
				kept := strings.Fields(run(t, to.dir, "", "for-each-ref", "--format=%(objectname)", session.KeptPrefix(sessionName)))
				if !slices.Contains(kept, two.String()) {
					t.Errorf("kept there: %v, want %v", kept, two)
				}
				run(t, p.work, "", "branch", "-D", "topic")
				await(t, "the removal", func() bool { return to.ref("refs/heads/topic") == "" })
				run(t, to.dir, "", "fsck", "--strict")
				if p.repo.Owned(p.base) {
					t.Error("the base is owned")
				}
			})
		}
	}
}

// An empty session remote gets the history first, in one request to the mounted remote.
func TestSeed(t *testing.T) {
	for _, kind := range []string{"path", "http"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t, object.SHA1)
			serve, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(p.origin.Path)})
			if err != nil {
				t.Fatal(err)
			}
			defer serve.Close()
			origin, err := transport.Open(serve.URL("origin"), transport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer origin.Close()
			to := newFar(t, kind, object.SHA1, "")
			p.carrier(CarrierOptions{})
			one := p.commit("d/new.txt", "one")
			await(t, "the carrier", func() bool { return p.inSession("refs/heads/main") == one.String() })
			point := p.point("manual")
			q := p.queue(to, QueueOptions{Origin: origin})
			defer q.Close()
			wantSync(t, q)
			if to.ref("refs/heads/main") != one.String() || !q.Has(point) || q.Status().Mode != ModeSeed {
				t.Errorf("%+v", q.Status())
			}
			run(t, to.dir, "", "fsck", "--strict")
			if n := len(serve.Log().Requests()); n > 5 {
				t.Errorf("%d requests to the mounted remote:\n%s", n, serve.Log())
			}
			into := filepath.Join(t.TempDir(), "clone")
			run(t, "/", "", "clone", "-q", to.dir, into)
			if left, _ := filepath.Glob(filepath.Join(q.o.Dir, "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			// A file of a commit that is not in that history.
			run(t, p.origin.Path, "", "branch", "side", "main")
			side, err := p.origin.Commit("side", map[string]gittest.File{"side.txt": {Data: []byte("from the side")}}, "side")
			if err != nil {
				t.Fatal(err)
			}
			run(t, p.store, "", "fetch", "-q", "origin", side.String())
			run(t, p.work, "", "read-tree", "--prefix=side/", side.String())
			run(t, p.work, "", "commit", "-q", "-m", "side")
			p.carried(object.MustID(run(t, p.work, "", "rev-parse", "HEAD")))
			q2 := p.reopen(q, to, QueueOptions{Origin: origin, Store: p})
			wantSync(t, q2)
			run(t, to.dir, "", "fsck", "--strict")
		})
	}
}

// reopen is another process that goes on.
func (p *place) reopen(q *Queue, to *far, o QueueOptions) *Queue {
	q.Close()
	return p.queue(to, o)
}

func TestDivergence(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "path", object.SHA1, p.origin.Path)
	p.carrier(CarrierOptions{})
	q := p.queue(to, QueueOptions{})
	one := p.commit("a", "one")
	await(t, "the first commit", func() bool { return to.ref("refs/heads/main") == one.String() })
	// Somebody else commits there.
	theirs := run(t, to.dir, "", "-c", "user.name=b", "-c", "user.email=b@c", "commit-tree", "-p", one.String(), "-m", "theirs", one.String()+"^{tree}")
	run(t, to.dir, "", "update-ref", "refs/heads/main", theirs)
	two := p.commit("a", "two")
	diverged := session.DivergedRef(sessionName, "refs/heads/main")
	await(t, "ours beside theirs", func() bool { return to.ref(diverged) == two.String() })
	if err := syncAll(t, q); !errors.Is(err, ErrMoved) {
		t.Errorf("sync: %v", err)
	}
	if st := q.Status(); !slices.Equal(st.Diverged, []string{"refs/heads/main"}) || st.Pending != 0 {
		t.Errorf("%+v", st)
	}
	if got := to.ref("refs/heads/main"); got != theirs {
		t.Fatalf("theirs is lost: %s", got)
	}
	three := p.commit("a", "three")
	await(t, "ours going on", func() bool { return to.ref(diverged) == three.String() })
	// A new process sees it the same way.
	q = p.reopen(q, to, QueueOptions{})
	if err := syncAll(t, q); !errors.Is(err, ErrMoved) {
		t.Errorf("sync of another process: %v", err)
	}
	// Merged: all is well.
	run(t, p.work, "", "fetch", "-q", to.dir, "main")
	run(t, p.work, "", "merge", "-q", "-m", "both", "FETCH_HEAD")
	merged := run(t, p.work, "", "rev-parse", "HEAD")
	await(t, "the merge", func() bool { return to.ref("refs/heads/main") == merged && to.ref(diverged) == "" })
	wantSync(t, q)
	if st := q.Status(); len(st.Diverged) != 0 {
		t.Errorf("%+v", st)
	}
	// Removed there, by whomever: it is sent again. Removed here while moved there: theirs stays.
	run(t, to.dir, "", "update-ref", "-d", "refs/heads/main")
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != merged || len(q.Status().Notices) == 0 {
		t.Errorf("a lost ref is %q; %q", got, q.Status().Notices)
	}
}

// The session's own refs, moved by another machine.
func TestTaken(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "path", object.SHA1, p.origin.Path)
	repo, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	meta := session.MetaRef(sessionName)
	commit := func(dir, parent string) object.ID {
		args := []string{"-c", "user.name=b", "-c", "user.email=b@c", "commit-tree", "-m", time.Now().String()}
		if parent != "" {
			args = append(args, "-p", parent)
		}
		return object.MustID(run(t, dir, "", append(args, run(t, dir, "", "mktree"))...))
	}
	set := func(ref string, old, id object.ID) {
		t.Helper()
		if err := repo.Update(t.Context(), []session.RefChange{{Name: ref, Old: old, New: id}}); err != nil {
			t.Fatal(err)
		}
	}
	first := commit(p.session, "")
	set(meta, object.ID{}, first)
	var mu sync.Mutex
	var taken []Taken
	q := p.queue(to, QueueOptions{Taken: func(k Taken) { mu.Lock(); defer mu.Unlock(); taken = append(taken, k) }})
	before := p.point("manual")
	wantSync(t, q)
	theirs := commit(to.dir, first.String())
	run(t, to.dir, "", "update-ref", meta, theirs.String())
	ours := commit(p.session, first.String())
	set(meta, first, ours)
	p.point("manual")
	if err := syncAll(t, q); !errors.Is(err, ErrMoved) {
		t.Errorf("sync: %v", err)
	}
	lane := session.SegmentRef(sessionName, "main", 1)
	if got := to.ref(lane); got != before.Commit.String() {
		t.Errorf("a point was sent to a lane that another machine has: %s", got)
	}
	await(t, "the news", func() bool { mu.Lock(); defer mu.Unlock(); return len(taken) > 0 })
	if taken[0] != (Taken{Ref: meta, Theirs: theirs}) || !repo.Owned(theirs) {
		t.Errorf("told %v, here: %v", taken, repo.Owned(theirs))
	}
	// Ours goes on top of theirs: settled.
	set(meta, ours, commit(p.session, theirs.String()))
	wantSync(t, q)
	if n := len(taken); n != 1 {
		t.Errorf("told %d times", n)
	}
	// A repository that has lost its refs removes nothing there.
	q.Close()
	for _, ref := range strings.Fields(run(t, p.session, "", "for-each-ref", "--format=%(refname)")) {
		run(t, p.session, "", "update-ref", "-d", ref)
	}
	q = p.queue(to, QueueOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := q.Sync(ctx, nil); !errors.Is(err, errNoMeta) || to.ref(lane) == "" {
		t.Errorf("sync without refs: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "http", object.SHA1, p.origin.Path)
	hook := func(name, script string) func() {
		path := filepath.Join(to.dir, "hooks", name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return func() { os.Remove(path) }
	}
	p.carrier(CarrierOptions{})
	q := p.queue(to, QueueOptions{})
	// A protected branch does not hold the points up.
	remove := hook("update", `test "$1" != refs/heads/main || { echo main is protected >&2; exit 1; }`)
	one := p.commit("a", "one")
	await(t, "the carrier", func() bool { return p.inSession("refs/heads/main") == one.String() })
	point := p.point("manual")
	err := syncAll(t, q)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "protected") {
		t.Errorf("sync: %v", err)
	}
	if st := q.Status(); !q.Has(point) || len(st.Refused) != 1 || st.Pending != 1 {
		t.Errorf("%+v", st)
	}
	remove()
	wantSync(t, q)
	// All is refused.
	remove = hook("pre-receive", "echo closed today >&2; exit 1")
	two := p.commit("a", "two")
	p.carried(two)
	if err := syncAll(t, q); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "closed today") {
		t.Errorf("sync: %v", err)
	}
	remove()
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != two.String() {
		t.Errorf("main is %s", got)
	}
	// Rewriting is forbidden: ours goes beside.
	run(t, to.dir, "", "config", "receive.denyNonFastForwards", "true")
	three := p.commit("a", "three", "--amend")
	p.carried(three)
	if err := syncAll(t, q); !errors.Is(err, ErrMoved) {
		t.Errorf("sync: %v (%+v)", err, q.Status())
	}
	if got := to.ref(session.DivergedRef(sessionName, "refs/heads/main")); got != three.String() || to.ref("refs/heads/main") != two.String() {
		t.Errorf("ours is %s there", got)
	}
	run(t, to.dir, "", "config", "receive.denyNonFastForwards", "false")
	q = p.reopen(q, to, QueueOptions{})
	wantSync(t, q)
	// So is removal.
	run(t, to.dir, "", "config", "receive.denyDeletes", "true")
	run(t, p.work, "", "branch", "gone", "HEAD")
	await(t, "a branch", func() bool { return to.ref("refs/heads/gone") != "" })
	run(t, p.work, "", "branch", "-D", "gone")
	await(t, "the removal", func() bool { return p.inSession("refs/heads/gone") == "" })
	wantSync(t, q)
	// No access.
	deny := to.server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "u", Pass: "secret"})
	four := p.commit("a", "four")
	await(t, "the carrier", func() bool { return p.inSession("refs/heads/main") == four.String() })
	if err := syncAll(t, q); !errors.Is(err, transport.ErrAuth) {
		t.Errorf("sync: %v", err)
	}
	if st := q.Status(); st.Pending == 0 || st.Failure == nil {
		t.Errorf("%+v", st)
	}
	deny.Remove()
	wantSync(t, q)
}

// While the session remote is away everything waits, and then arrives once, in order.
func TestOutage(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "http", object.SHA1, p.origin.Path)
	p.carrier(CarrierOptions{})
	q := p.queue(to, QueueOptions{})
	run(t, to.dir, "", "config", "core.logAllRefUpdates", "always")
	to.server.Down()
	var last object.ID
	var points []session.Point
	for i := range 10 {
		last = p.commit("a", fmt.Sprint(i))
		p.carried(last)
		points = append(points, p.point("idle"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := q.Sync(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("sync without a remote: %v", err)
	}
	q.Close() // and nothing is forgotten
	if err := to.server.Up(); err != nil {
		t.Fatal(err)
	}
	q = p.queue(to, QueueOptions{})
	wantSync(t, q)
	if to.ref("refs/heads/main") != last.String() || !q.Has(points[9]) {
		t.Error("not all is there")
	}
	chain := strings.Fields(run(t, to.dir, "", "rev-list", "--first-parent", "-10", session.SegmentRef(sessionName, "main", 1)))
	for i, id := range chain {
		if id != points[9-i].Commit.String() {
			t.Errorf("point %d from the end is %s", i, id)
		}
	}
	run(t, to.dir, "", "fsck", "--strict")
}

// Whether a push whose answer was lost has been done is found out, also when the ref has gone on by then.
func TestLostAnswer(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "http", object.SHA1, p.origin.Path)
	p.carrier(CarrierOptions{})
	q := p.queue(to, QueueOptions{})
	one := p.commit("a", "one")
	p.carried(one)
	wantSync(t, q)
	isPost := func(r gittest.Request) bool { return r.Method == "POST" }
	cut := to.server.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Push, Match: isPost, Times: 1})
	away := to.server.Inject(gittest.Fault{Kind: gittest.Status, On: gittest.Push, Skip: 2}) // behind that push nothing goes
	two := p.commit("a", "two")
	p.carried(two)
	await(t, "a push without an answer", func() bool { return cut.Hits() == 1 && to.ref("refs/heads/main") == two.String() })
	q.Close()
	three := p.commit("a", "three", "--amend")
	p.carried(three)
	away.Remove()
	q = p.queue(to, QueueOptions{})
	wantSync(t, q)
	if st := q.Status(); to.ref("refs/heads/main") != three.String() || len(st.Diverged) > 0 {
		t.Errorf("%+v", st)
	}
}

// A queue that ends at any moment, and remotes that break off, lose nothing and do nothing twice.
func TestQueueEndsAnywhere(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "http", object.SHA1, p.origin.Path)
	p.carrier(CarrierOptions{})
	run(t, to.dir, "", "config", "core.logAllRefUpdates", "always")
	remote := to.open(transport.Options{})
	var tips []object.ID
	var points []session.Point
	for i := range 25 {
		q := p.queue(to, QueueOptions{Remote: remote})
		args := []string{}
		if i%3 == 2 {
			args = append(args, "--amend")
		}
		tips = append(tips, p.commit("a", fmt.Sprint(i), args...))
		points = append(points, p.point("idle"))
		var fault *gittest.Injection
		switch i % 4 {
		case 1:
			fault = to.server.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Push, After: int64(i * 7 % 300), Skip: i % 3})
		case 2:
			fault = to.server.Inject(gittest.Fault{Kind: gittest.Status, On: gittest.Push, Skip: i % 3})
		}
		time.Sleep(time.Duration(i*i%60) * time.Millisecond) // some moment, none in particular
		q.Close()
		if fault != nil {
			fault.Remove()
		}
		to.unlock()
	}
	p.carried(tips[len(tips)-1])
	q := p.queue(to, QueueOptions{Remote: remote})
	wantSync(t, q)
	if st := q.Status(); len(st.Diverged)+len(st.Moved)+len(st.Notices) > 0 {
		t.Errorf("%+v", st)
	}
	if got := to.ref("refs/heads/main"); got != tips[len(tips)-1].String() {
		t.Errorf("main is %s", got)
	}
	chain := strings.Fields(run(t, to.dir, "", "rev-list", "--first-parent", "-25", session.SegmentRef(sessionName, "main", 1)))
	for i, id := range chain {
		if id != points[len(points)-1-i].Commit.String() {
			t.Errorf("point %d from the end is %s", i, id)
		}
	}
	// Every value came once: what a ref was moved to it was not moved to again.
	seen := map[string]bool{}
	for _, id := range strings.Fields(run(t, to.dir, "", "log", "-g", "--format=%H", "refs/heads/main")) {
		if seen[id] {
			t.Errorf("main came to %s twice", id)
		}
		seen[id] = true
	}
	run(t, to.dir, "", "fsck", "--strict")
}

// A server of old that cannot be asked what it has, and has nothing.
func TestSeedUnasked(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "http", object.SHA1, "")
	to.server.Inject(gittest.Fault{Kind: gittest.NoV2})
	p.carrier(CarrierOptions{})
	one := p.commit("a", "one")
	p.carried(one)
	q := p.queue(to, QueueOptions{})
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != one.String() || q.Status().Mode != ModeSeed {
		t.Errorf("main is %q; %+v", got, q.Status())
	}
}

// A session remote whose disk is full says so, and gets all when there is room.
func TestFullRemote(t *testing.T) {
	p := newPlace(t, object.SHA1)
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=2m", "none", dir).CombinedOutput(); err != nil {
		t.Skipf("mount tmpfs: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
	to := &far{t: t, dir: filepath.Join(dir, "far"), url: filepath.Join(dir, "far")}
	run(t, "/", "", "clone", "-q", "--bare", "--no-hardlinks", p.origin.Path, to.dir)
	p.carrier(CarrierOptions{})
	q := p.queue(to, QueueOptions{})
	one := p.commit("a", "one")
	p.carried(one)
	wantSync(t, q)
	noise := make([]byte, 4<<20)
	rand.Read(noise)
	two := p.commit("noise", string(noise))
	p.carried(two)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := q.Sync(ctx, nil); err == nil {
		t.Error("all was taken by a full disk")
	}
	if st := q.Status(); st.Failure == nil || !strings.Contains(st.Failure.Error(), "No space") || st.Pending == 0 {
		t.Errorf("%+v", st)
	}
	if out, err := exec.Command("mount", "-o", "remount,size=64m", dir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != two.String() {
		t.Errorf("main is %s", got)
	}
	run(t, to.dir, "", "fsck", "--strict")
}

func FuzzLedger(f *testing.F) {
	l := newLedger("https://host/x y")
	id := object.MustID(strings.Repeat("12", 20))
	l.mode, l.synced, l.ground[id] = ModeSeed, time.Unix(5, 6), true
	l.refs["refs/heads/a"] = acquaint{acked: id, sent: id, sending: true}
	l.refs["refs/heads/b"] = acquaint{acked: id, sending: true}
	l.refs["refs/heads/c"] = acquaint{acked: id}
	f.Add(l.encode())
	f.Add([]byte(ledgerHead + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLedger(object.SHA1, text)
		if err != nil {
			return
		}
		again, err := parseLedger(object.SHA1, l.encode())
		if err != nil || !reflect.DeepEqual(again.refs, l.refs) || again.remote != l.remote || again.mode != l.mode {
			t.Errorf("%q read as %+v, then as %+v (%v)", text, l, again, err)
		}
	})
}

// How long a commit takes to a session remote that is 50 ms away.
func TestDelay(t *testing.T) {
	for _, kind := range []string{"http", "ssh"} {
		p := newPlace(t, object.SHA1)
		to := newFar(t, kind, object.SHA1, p.origin.Path)
		to.server.SetRTT(50 * time.Millisecond)
		p.carrier(CarrierOptions{})
		p.queue(to, QueueOptions{})
		for i := range 4 {
			id := p.commit("a", fmt.Sprint(i))
			start := time.Now()
			await(t, "the commit", func() bool { return to.ref("refs/heads/main") == id.String() })
			t.Logf("%s, commit %d: %v", kind, i, time.Since(start))
		}
	}
}

// A mounted remote that cannot give its history is not asked for it again and again, and who waits is told.
func TestSeedFails(t *testing.T) {
	p := newPlace(t, object.SHA1)
	serve, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(p.origin.Path)})
	if err != nil {
		t.Fatal(err)
	}
	defer serve.Close()
	origin, err := transport.Open(serve.URL("origin"), transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer origin.Close()
	to := newFar(t, "http", object.SHA1, "")
	broken := serve.Inject(gittest.Fault{Kind: gittest.Garbage, On: gittest.Fetch})
	p.carrier(CarrierOptions{})
	p.carried(p.commit("a", "one"))
	q := p.queue(to, QueueOptions{Origin: origin})
	for range 3 {
		if err := syncAll(t, q); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sync: %v", err)
		}
	}
	p.carried(p.commit("a", "two"))
	if st := q.Status(); st.Failure == nil || st.Pending == 0 || st.Mode != ModeSeed {
		t.Errorf("%+v", st)
	}
	if n := broken.Hits(); n != 1 {
		t.Errorf("the mounted remote was asked %d times", n)
	}
	broken.Remove()
	q = p.reopen(q, to, QueueOptions{Origin: origin})
	wantSync(t, q)
}
