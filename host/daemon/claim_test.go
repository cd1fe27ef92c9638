package daemon

import (
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/session/catalog"
)

// TestALaneIsWhoseTheSessionRemoteSays checks that a lane has one writer. If two hosts mount a session at the same
// time, one is refused. A host is also refused if its own copy of the session names no writer, because the session
// remote decides.
func TestALaneIsWhoseTheSessionRemoteSays(t *testing.T) {
	t.Parallel()
	remote, sessions := served(t)
	var hosts []*testKeeper
	var requests []control.MountRequest
	for range 3 {
		k := newKeep(t)
		k.start()
		k.await()
		r := k.request(remote, k.dir("m"))
		r.Session, r.SessionOptions = "hour", control.SessionOptions{Remote: sessions, Policy: control.PolicyOff}
		hosts, requests = append(hosts, k), append(requests, r)
	}
	first := hosts[0]
	first.mount(requests[0])
	first.sh(requests[0].Dir, "echo one >one")
	first.checkpoint(requests[0].Dir)
	first.unmount(requests[0].Dir)

	errs := make([]error, 3)
	var both sync.WaitGroup
	for i := 1; i < 3; i++ {
		both.Go(func() { _, errs[i] = hosts[i].client.Mount(t.Context(), requests[i], nil) })
	}
	both.Wait()
	has, not := 1, 2
	if errs[1] != nil {
		has, not = 2, 1
	}
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "holds session hour") }
	if errs[has] != nil || !refused(errs[not]) {
		t.Fatalf("mounts of two hosts at the same time: got %v, %v, want one refused", errs[1], errs[2])
	}
	if kept, err := catalog.Unmounted(hosts[not].state); err != nil || len(kept) != 0 {
		t.Errorf("the refused host has a session: %v, %+v", err, kept)
	}
	// The copy of the metadata on this host names no machine that uses the session. The mount must still be refused.
	if _, err := first.client.Mount(t.Context(), requests[0], nil); !refused(err) {
		t.Errorf("mount on the first host, whose copy of the session is old: got %v", err)
	}
	if _, err := first.client.Mount(t.Context(), requests[0], nil); !refused(err) {
		t.Errorf("second mount on the first host: got %v", err)
	}
	hosts[has].sh(requests[has].Dir, "echo two >two")
	hosts[has].checkpoint(requests[has].Dir)
	if st := hosts[has].status(requests[has].Dir); st.Session.Lane != "main" || len(st.Notes) != 0 {
		t.Errorf("status of the host that holds the lane: got %+v, notes %q", st.Session, st.Notes)
	}
	requests[0].SessionOptions.TakeOver = true
	first.mount(requests[0])
	first.unmount(requests[0].Dir)
	hosts[has].unmount(requests[has].Dir)
}
