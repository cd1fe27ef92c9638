package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// workedIn is a session with changes that were made on another host, and the servers of the mounted remote and the
// session remote.
type workedIn struct {
	host             *testKeeper
	request          control.MountRequest
	origin, sessions *gittest.Server
	remote           *gittest.Receiver // repository of the session remote
	left             string            // ID of the session's metadata on the session remote after the unmount
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

// of returns the request that mounts the session on a host.
func (w workedIn) of(k *testKeeper) control.MountRequest {
	r := k.request(w.origin.URL("r.git"), k.dir("m"))
	r.Session, r.Wait, r.Prefetch = "hour", control.WaitGit, control.PrefetchNone
	r.SessionOptions = control.SessionOptions{Remote: w.sessions.URL("s.git"), Policy: control.PolicyOff, Base: w.base}
	return r
}

// meta returns the ID of the session's metadata on the session remote.
func (w workedIn) meta(t *testing.T) string {
	t.Helper()
	id, err := gittest.Git(t.Context(), w.remote.Path, "rev-parse", session.MetaRef("hour"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestAClaimDoesNotWaitForAContainer checks that the container of a thin session, which is the commit that holds all
// its refs, is fetched while the lane is claimed.
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
	other.until("the lane is claimed while the container is being fetched",
		func() bool { return w.meta(t) != w.left && container.Hits() == 1 })
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
		t.Errorf("got %d fetches, want two, of the session's metadata and of its container:\n%s", fetches, w.sessions.Log())
	}
	if got := other.sh(r.Dir, "cat new; git show :new; git status --porcelain"); got != "newer\nnew\nAM new\n" {
		t.Errorf("files of the resumed session: got %q", got)
	}
}

// TestAClaimTakesOneRequestAndNobodyWaitsForIt checks that only those requests are sent one after the other that depend
// on each other's results, and that the claim does not wait for the requests that fetch the session.
func TestAClaimTakesOneRequestAndNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	w := workIn(t, control.BaseSeed)
	other := newKeep(t)
	other.start()
	other.await()
	r := w.of(other)
	w.origin.Log().Reset()
	w.sessions.Log().Reset()
	// delays the fetch of the files of the checkpoint's State
	small := w.sessions.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, Skip: 2, Times: 1})
	mounted := make(chan error, 1)
	go func() {
		_, err := other.client.Mount(t.Context(), r, nil)
		mounted <- err
	}()
	other.until("the lane is claimed while the session is being fetched",
		func() bool { return w.meta(t) != w.left && small.Hits() == 1 })
	select {
	case err := <-mounted:
		t.Fatalf("mount returned before the session was fetched: %v", err)
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
		t.Errorf("requests to the session remote: got %v, want %v:\n%s", count, want, w.sessions.Log())
	}
	first := w.origin.Log().Requests()
	if len(first) < 2 || first[0].Command != gittest.Capabilities || first[1].Command != gittest.Fetch {
		t.Errorf("first requests to the mounted remote: want capabilities and fetch:\n%s", w.origin.Log())
	}
	if got := other.sh(r.Dir, "cat new; git show :new; git status --porcelain"); got != "newer\nnew\nAM new\n" {
		t.Errorf("files of the resumed session: got %q", got)
	}
	if st := other.status(r.Dir).Session; st.Lane != session.MainLane || st.Pending != 0 || st.State != "active" {
		t.Errorf("status after the take-over: got %+v, want the active session on the main lane and nothing pending", st)
	}
	if _, err := w.host.client.Mount(t.Context(), w.request, nil); err == nil ||
		!strings.Contains(err.Error(), "holds session hour") {
		t.Errorf("another host's mount of a held session: got %v", err)
	}
	other.unmount(r.Dir)
	w.host.mount(w.request) // must succeed although the last claim that this host has read is that of another machine
	w.host.unmount(w.request.Dir)
}

// TestAMountThatFailsHoldsNoLane checks that a host releases its claim of a lane if the mount then fails, even if the
// mounted remote has not answered at all.
func TestAMountThatFailsHoldsNoLane(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]gittest.Fault{
		"no fetch is answered": {Kind: gittest.Stall, On: gittest.Fetch}, "nothing is answered": {Kind: gittest.Stall},
	} {
		t.Run(name, func(t *testing.T) { failToMount(t, fault) })
	}
}

func failToMount(t *testing.T, fault gittest.Fault) {
	w := workIn(t, control.BaseSeed)
	other := newKeep(t)
	other.start()
	other.await()
	stalled := w.origin.Inject(fault)
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
		t.Fatal("mount succeeded without the commit")
	}
	other.until("the claim is released", func() bool { return w.meta(t) != claimed })
	stalled.Remove()
	w.host.mount(w.request)
	if st := w.host.status(w.request.Dir); st.Session.Lane != session.MainLane || len(st.Notes) != 0 {
		t.Errorf("status of the first host: got %+v with notes %q, want the main lane and no note", st.Session, st.Notes)
	}
	w.host.unmount(w.request.Dir)
	other.until("the failed mount has left no files", func() bool {
		kept, err := catalog.Unmounted(other.state)
		return err == nil && len(kept) == 0
	})
}
