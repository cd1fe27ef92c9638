package writeback

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/mounted"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/refcopy"
)

func TestMain(m *testing.M) {
	os.Exit(mounted.WithoutConfig(m.Run))
}

const sessionName = mounted.SessionName

var run, try = mounted.Run, mounted.Try

// place is a mounted.Place for which the tests create queues.
type place struct{ *mounted.Place }

func newPlace(t testing.TB, f object.Format) *place { return &place{mounted.New(t, f)} }

// copier starts a refcopy.Copier for the mount.
func (p *place) copier() {
	c := refcopy.New(refcopy.Options{Repo: p.Open, Session: sessionName, GitDir: p.Git, Format: p.Format,
		Watch: mounted.PollWatch(p.T),
		Refs:  func() []packedrefs.Ref { return []packedrefs.Ref{{Name: "refs/heads/main", ID: p.Base}} }})
	p.T.Cleanup(c.Close)
}

// testRemote is a session remote for the tests.
type testRemote struct {
	t      testing.TB
	dir    string
	url    string
	server *gittest.Server // nil if the session remote is reached by path
	kept   string          // directory with the state of the thin.Remote that was opened last
}

// newTestRemote creates a session remote that is empty, or has the history of the repository from.
func newTestRemote(t testing.TB, kind string, f object.Format, from string) *testRemote {
	t.Helper()
	root := t.TempDir()
	r := &testRemote{t: t, dir: filepath.Join(root, "far")}
	if from != "" {
		run(t, root, "", "clone", "-q", "--bare", from, r.dir)
	} else {
		run(t, root, "", "init", "-q", "--bare", "-b", "main", "--object-format="+f.String(), r.dir)
	}
	if from != "" {
		r.own()
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

// own makes the session the owner of the plain names.
func (r *testRemote) own() {
	run(r.t, r.dir, "", "update-ref", session.OwnerRef, run(r.t, r.dir, sessionName+"\n", "hash-object", "-w", "--stdin"))
}

// removeOwner makes the plain names belong to users and not to the session.
func (r *testRemote) removeOwner() { run(r.t, r.dir, "", "update-ref", "-d", session.OwnerRef) }

func (r *testRemote) ref(name string) string {
	out, err := try(r.t, r.dir, "", "rev-parse", "-q", "--verify", name)
	if err != nil {
		return ""
	}
	return out
}

func (r *testRemote) open(o transport.Options) *thin.Remote {
	r.t.Helper()
	remote, err := transport.Open(r.url, o)
	if err != nil {
		r.t.Fatal(err)
	}
	far := thin.New(remote, sessionName, nil)
	r.kept = r.t.TempDir()
	far.Keep(r.kept)
	r.t.Cleanup(func() { far.Close() })
	return far
}

// queue starts a Queue. It is closed at the end of the test, unless the test closes it earlier.
func (p *place) queue(to *testRemote, o QueueOptions) *Queue {
	p.T.Helper()
	repo, err := p.Open()
	if err != nil {
		p.T.Fatal(err)
	}
	o.Repo, o.Dir = repo, p.T.TempDir()
	if o.Remote == nil {
		o.Remote = to.open(transport.Options{})
	}
	if o.Origin == nil {
		origin, err := transport.Open("file://"+p.Origin.Path, transport.Options{})
		if err != nil {
			p.T.Fatal(err)
		}
		p.T.Cleanup(func() { origin.Close() })
		o.Origin = origin
	}
	o.Log = zaptest.NewLogger(p.T)
	q, err := NewQueue(o)
	if err != nil {
		p.T.Fatal(err)
	}
	p.T.Cleanup(func() { q.Close() })
	return q
}

// syncAll calls Queue.Sync with a long timeout.
func syncAll(t testing.TB, q *Queue) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	defer cancel()
	return q.Sync(ctx, nil)
}

// awaitFailure waits until the status of the queue reports a failed push.
func awaitFailure(t testing.TB, q *Queue) {
	t.Helper()
	await.Until(t, "the status reports a failure", func() bool { return q.Status().Failure != nil })
}

func wantSync(t testing.TB, q *Queue) {
	t.Helper()
	if err := syncAll(t, q); err != nil {
		t.Fatalf("sync failed: %v (status %+v)", err, q.Status())
	}
	if st := q.Status(); st.Pending != 0 || st.Failure != nil || st.LastSync.IsZero() {
		t.Fatalf("status after sync: got %+v", st)
	}
}

// ingest stores fetched objects in a new object store, and returns the store.
func (p *place) ingest(resp *transport.FetchResponse) *odb.Store {
	p.T.Helper()
	defer resp.Pack.Close()
	into, err := odb.Open(p.T.TempDir(), p.Base.Format())
	if err != nil {
		p.T.Fatal(err)
	}
	p.T.Cleanup(func() { into.Close() })
	if _, err := into.Ingest(p.T.Context(), resp.Pack, odb.IngestOptions{MaxObjectSize: 1 << 30}, nil); err != nil {
		p.T.Fatal(err)
	}
	return into
}

// reopen closes the queue and opens another one, as a new process does.
func (p *place) reopen(q *Queue, to *testRemote, o QueueOptions) *Queue {
	q.Close()
	return p.queue(to, o)
}
