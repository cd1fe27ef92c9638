package daemon

import (
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/catalog"
)

// A lane has one writer: of two that come at the same time one is refused, and so is one whose own copy of the session says
// that nobody is there.
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
		t.Fatalf("two at the same time: %v, %v", errs[1], errs[2])
	}
	if kept, err := catalog.Unmounted(hosts[not].state); err != nil || len(kept) != 0 {
		t.Errorf("who was refused keeps %v, %+v", err, kept)
	}
	// The metadata that this host has names no machine that uses the session, and the mount is refused all the same.
	if _, err := first.client.Mount(t.Context(), requests[0], nil); !refused(err) {
		t.Errorf("a home that has been left: %v", err)
	}
	if _, err := first.client.Mount(t.Context(), requests[0], nil); !refused(err) {
		t.Errorf("and again: %v", err)
	}
	hosts[has].sh(requests[has].Dir, "echo two >two")
	hosts[has].checkpoint(requests[has].Dir)
	if st := hosts[has].status(requests[has].Dir); st.Session.Lane != "main" || len(st.Notes) != 0 {
		t.Errorf("who has the lane: %+v, %q", st.Session, st.Notes)
	}
	requests[0].SessionOptions.TakeOver = true
	first.mount(requests[0])
	first.unmount(requests[0].Dir)
	hosts[has].unmount(requests[has].Dir)
}
