package integration

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// status returns the status of a mount as the command prints it.
func (m mounted) status() control.MountStatus {
	m.w.Helper()
	var s control.MountStatus
	out := m.w.ok("status", m.Dir, "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		m.w.Fatalf("status printed %q: %v", out, err)
	}
	return s
}

// peek returns the status of the world's mounts as the daemon sends it, and whether the daemon answers. A command for
// each look would take a processor from what the look waits for.
func (w *world) peek() ([]control.MountStatus, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	client, err := control.Dial(ctx, control.DaemonSocket(w.state))
	if err != nil {
		return nil, false
	}
	s, err := client.Status(ctx)
	return s.Mounts, err == nil
}

// await polls the status of a mount until the condition holds. It asks the daemon, or the command if another process
// serves the mount or none does.
func (m mounted) await(what string, is func(control.MountStatus) bool) control.MountStatus {
	m.w.Helper()
	var s control.MountStatus
	m.w.until(what, func() bool {
		all, _ := m.w.peek()
		if i := slices.IndexFunc(all, func(s control.MountStatus) bool { return s.Dir == m.Dir }); i >= 0 {
			s = all[i]
		} else {
			s = m.status()
		}
		return is(s)
	})
	return s
}

// until polls a condition.
func (w *world) until(what string, is func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("condition does not hold after %v: %s", patience, what)
		}
	}
}

// idle reports whether no mount has fetches in flight or queued.
func idle(mounts []control.MountStatus) bool {
	return !slices.ContainsFunc(mounts, func(m control.MountStatus) bool { return m.Queue != (control.QueueStatus{}) })
}

// quiet waits until no mount of the world has fetches in flight or queued, then returns the requests so far. The last
// look is the command's, which knows the mounts of all processes.
func (s served) quiet() []gittest.Request {
	s.w.Helper()
	var all []gittest.Request
	s.w.until("no fetch is in flight or queued", func() bool {
		before := s.over.Load()
		if mounts, _ := s.w.peek(); !idle(mounts) {
			return false
		}
		var st control.Status
		if err := json.Unmarshal([]byte(s.w.ok("status", "--json")), &st); err != nil {
			s.w.Fatal(err)
		}
		all = s.Log().Requests()
		return idle(st.Mounts) && int64(len(all)) == before && s.over.Load() == before
	})
	return all
}
