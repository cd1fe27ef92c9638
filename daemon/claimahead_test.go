package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
)

// workedIn is a session that was worked in on another host, and the servers of what was mounted and of its session remote.
type workedIn struct {
	host             *testKeeper
	request          control.MountRequest
	origin, sessions *gittest.Server
	remote           *gittest.Receiver // that the session went to
	left             string            // what it knows of the session
	base             control.BaseMode
}

func workIn(t *testing.T, base control.BaseMode) workedIn {
	t.Helper()
	w := workedIn{host: newKeep(t), base: base}
	from, to := t.TempDir(), t.TempDir()
	sample(t, filepath.Join(from, "r.git"))
	var err error
	if w.remote, err = gittest.NewReceiver(filepath.Join(to, "s.git"), gittest.RepoOptions{}); err != nil {
		t.Fatal(err)
	}
	serve := func(root string) *gittest.Server {
		server, err := gittest.Serve(gittest.ServerOptions{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		return server
	}
	w.origin, w.sessions = serve(from), serve(to)
	w.host.start()
	w.host.await()
	w.request = w.of(w.host)
	w.host.mount(w.request)
	w.host.sh(w.request.Dir, "echo new >new; git add new; echo newer >new")
	w.host.checkpoint(w.request.Dir)
	w.host.unmount(w.request.Dir)
	w.left = w.meta(t)
	return w
}

// of is the request for the session on a host.
func (w workedIn) of(k *testKeeper) control.MountRequest {
	r := k.request(w.origin.URL("r.git"), k.dir("m"))
	r.Session, r.Wait, r.Prefetch = "hour", control.WaitGit, control.PrefetchNone
	r.SessionOptions = control.SessionOptions{Remote: w.sessions.URL("s.git"), Policy: control.PolicyOff, Base: w.base}
	return r
}

// meta is the id of what the session remote knows of the session.
func (w workedIn) meta(t *testing.T) string {
	t.Helper()
	id, err := gittest.Git(t.Context(), w.remote.Path, "rev-parse", session.MetaRef("hour"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// The container of a thin session comes while the lane is claimed.
func TestAClaimDoesNotWaitForAContainer(t *testing.T) {
	t.Parallel()
	w := workIn(t, control.BaseThin)
	other := newKeep(t)
	other.start()
	other.await()
	r := w.of(other)
	w.sessions.Log().Reset()
	container := w.sessions.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, Skip: 1, Times: 1})
	mounted := make(chan error, 1)
	go func() {
		_, err := other.client.Mount(t.Context(), r, nil)
		mounted <- err
	}()
	other.until("the lane is claimed while the container is still coming", func() bool { return w.meta(t) != w.left && container.Hits() == 1 })
	container.Remove()
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	fetches := 0
	for _, r := range w.sessions.Log().Requests() {
		if r.Command == gittest.Fetch {
			fetches++
		}
	}
	if fetches != 2 {
		t.Errorf("%d fetches, want what the session is, and its container:\n%s", fetches, w.sessions.Log())
	}
	if got := other.sh(r.Dir, "cat new; git show :new; git status --porcelain"); got != "newer\nnew\nAM new\n" {
		t.Errorf("it goes on with %q", got)
	}
}

// A session that goes on elsewhere takes as many requests as there are things that cannot be known before, and its claim waits
// for none of those that bring it.
func TestAClaimTakesOneRequestAndNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	w := workIn(t, control.BaseSeed)
	other := newKeep(t)
	other.start()
	other.await()
	r := w.of(other)
	w.origin.Log().Reset()
	w.sessions.Log().Reset()
	small := w.sessions.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, Skip: 2, Times: 1}) // the files of the checkpoint's State
	mounted := make(chan error, 1)
	go func() {
		_, err := other.client.Mount(t.Context(), r, nil)
		mounted <- err
	}()
	other.until("the lane is claimed while the session is still coming", func() bool { return w.meta(t) != w.left && small.Hits() == 1 })
	select {
	case err := <-mounted:
		t.Fatalf("mounted before all was there: %v", err)
	default:
	}
	small.Remove()
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range w.sessions.Log().Requests() {
		count[fmt.Sprint(r.Command, " ", r.Method)]++
	}
	want := map[string]int{"caps GET": 1, "ls-refs POST": 1, "fetch POST": 3, "push POST": 1}
	if fmt.Sprint(count) != fmt.Sprint(want) {
		t.Errorf("%v, want %v:\n%s", count, want, w.sessions.Log())
	}
	first := w.origin.Log().Requests()
	if len(first) < 2 || first[0].Command != gittest.Capabilities || first[1].Command != gittest.Fetch {
		t.Errorf("the mounted remote was asked otherwise:\n%s", w.origin.Log())
	}
	if got := other.sh(r.Dir, "cat new; git show :new; git status --porcelain"); got != "newer\nnew\nAM new\n" {
		t.Errorf("it goes on with %q", got)
	}
	if st := other.status(r.Dir).Session; st.Lane != session.MainLane || st.Pending != 0 || st.State != "active" {
		t.Errorf("status after the take-over: got %+v, want the active session on the main lane and nothing pending", st)
	}
	if _, err := w.host.client.Mount(t.Context(), w.request, nil); err == nil || !strings.Contains(err.Error(), "holds session hour") {
		t.Errorf("somebody else gets the lane: %v", err)
	}
	other.unmount(r.Dir)
	w.host.mount(w.request) // although the last claim that this host has read is of another machine
	w.host.unmount(w.request.Dir)
}

// Who has claimed a lane and is not mounted after all lets go of it.
func TestAMountThatFailsHoldsNoLane(t *testing.T) {
	t.Parallel()
	w := workIn(t, control.BaseSeed)
	other := newKeep(t)
	other.start()
	other.await()
	stalled := w.origin.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := other.client.Mount(ctx, w.of(other), nil)
		failed <- err
	}()
	other.until("the lane is claimed", func() bool { return w.meta(t) != w.left })
	claimed := w.meta(t)
	cancel()
	if err := <-failed; err == nil {
		t.Fatal("mounted without a commit")
	}
	other.until("it lets go", func() bool { return w.meta(t) != claimed })
	stalled.Remove()
	w.host.mount(w.request)
	if st := w.host.status(w.request.Dir); st.Session.Lane != session.MainLane || len(st.Notes) != 0 {
		t.Errorf("status of the first host: got %+v with notes %q, want the main lane and no note", st.Session, st.Notes)
	}
	w.host.unmount(w.request.Dir)
	other.until("nothing is left", func() bool {
		kept, err := catalog.Unmounted(other.state)
		return err == nil && len(kept) == 0
	})
}
