package daemon

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/statedir"
)

// statusWait limits how long a status request waits for takeovers and for the counting of large trees, for all mounts together.
const statusWait = 2 * time.Second

// Status returns the status of all mounts of this process, and of the mounts that ended by a failure.
func (d *Daemon) Status(ctx context.Context) (control.Status, error) {
	return d.statusOfAll(ctx, time.Now())
}

// Mounts is like Status, without the numbers of files, because counting takes half a second in a tree of 100,000 files.
func (d *Daemon) Mounts(ctx context.Context) (control.Status, error) {
	return d.statusOfAll(ctx, time.Time{})
}

// statusOfAll returns the status of all mounts. The numbers of files were counted after the time then; if then is zero, they are
// omitted.
func (d *Daemon) statusOfAll(ctx context.Context, then time.Time) (control.Status, error) {
	usage := d.blobs.Usage()
	st := control.Status{
		Mounts: []control.MountStatus{},
		Cache:  control.CacheStatus{Blobs: int64(usage.Blobs), Bytes: usage.Bytes, Quota: usage.Quota},
	}
	wait, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	there := map[string]bool{}
	for _, m := range d.list() {
		m.awaitTakeover(wait) // a takeover takes a moment only
		if !m.isGone() {
			there[m.dir] = true
			st.Mounts = append(st.Mounts, m.statusSince(wait, then))
		}
	}
	// A failure is shown until its directory is mounted again.
	for _, f := range d.failures.List() {
		if !there[f.Dir] {
			st.Mounts = append(st.Mounts, f.Status())
		}
	}
	return st, nil
}

// Failed returns the mounts of a state directory that ended by a failure. Status includes these mounts too. Failed works without
// a daemon.
func Failed(state string) (all []control.MountStatus) {
	for _, f := range (statedir.Failures{State: state}).List() {
		all = append(all, f.Status())
	}
	return all
}

// ForgetFailed removes the record of a failed mount, and keeps its session.
func ForgetFailed(state, dir string) error {
	if f := (statedir.Failures{State: state}); f.Forget(dir, nil) {
		return nil
	}
	return errors.New("it is not on record any more, or cannot be removed")
}

// statusSince returns the status of the mount. The numbers of files were counted after the time then; if then is zero, they are
// omitted.
func (m *mount) statusSince(ctx context.Context, then time.Time) control.MountStatus {
	m.mu.Lock()
	state, snap, served, gitReady, git := m.state, m.snap, m.cancel != nil, m.gitReady, m.git.dir
	m.mu.Unlock()
	s := control.MountStatus{
		ID: m.id, Dir: m.dir, State: state, ReadOnly: m.request.ReadOnly, Since: m.since, PID: os.Getpid(), History: control.HistoryShallow,
		Session: control.SessionStatus{Name: m.session},
	}
	if m.parent != nil {
		s.SubmoduleOf = m.parent.dir
	}
	if !served {
		return s // start or a takeover still writes the other fields
	}
	if s.GitReady = gitReady; gitReady {
		s.Head = git.HeadName()
	}
	if err := m.failure(); err != nil {
		s.Error = err.Error()
	}
	stats := m.store.Stats()
	s.Notes = append(stats.Notices, m.tree.Recovery().Problems...)
	s.Notes = append(s.Notes, m.redirects.Notes()...)
	s.Notes = append(s.Notes, m.submodules.problems()...)
	s.Notes = append(s.Notes, m.agent.Notices()...)
	s.Notes = append(s.Notes, m.shownCheckpoint()...)
	s.Session = m.listed().Status()
	// A failure to reach the remote takes precedence over refused objects (objects whose answers were invalid three times).
	for _, r := range stats.Refused {
		refused := control.RefusedObject{Path: r.Path, Cause: r.Err.Error()}
		if !r.Object.IsZero() {
			refused.Object = r.Object.String()
		}
		if !r.Next.IsZero() {
			refused.Next = &r.Next
		}
		s.Refused = append(s.Refused, refused)
	}
	if len(stats.Refused) > 0 {
		s.Error = stats.Refused[0].Error()
	}
	if stats.Failure != nil {
		s.Error = stats.Failure.Error()
	}
	// A degraded mount serves everything that is on this host.
	if s.Error != "" && state == control.StateMounted {
		s.State = control.StateDegraded
	}
	s.Remote, s.Ref, s.Commit = m.store.URL(), statedir.ShortRef(snap.Ref), snap.Commit.String()
	if stats.History != "" {
		s.History = control.HistoryState(stats.History)
		select {
		case <-m.historyTried:
		default: // the store has the whole history, but the mount's own refs do not refer to it yet
			if s.History == control.HistoryComplete {
				s.History = control.HistoryDeepening
			}
		}
	}
	if !then.IsZero() {
		h := m.view.CountsSince(ctx, then)
		s.Tree = control.TreeStatus{Files: int64(h.Files), Complete: snap.Whole()}
		s.Blobs = control.BlobStatus{Total: int64(h.Blobs), Fetched: int64(h.Fetched), Bytes: h.Bytes}
	}
	s.Network = control.NetworkStatus{
		Requests: stats.Requests - m.before.Requests, RoundTrips: stats.RoundTrips - m.before.RoundTrips,
		Blobs: stats.Blobs - m.before.Blobs, Bytes: stats.BytesIn - m.before.BytesIn,
	}
	if m.session != "" && !then.IsZero() {
		s.Overlay = control.OverlayStatus{Changed: m.changed(), Bytes: m.tree.Stats().Bytes}
	}
	s.Redirects = m.redirects.Status()
	s.Follow = m.followStatus()
	if m.server != nil {
		s.Operations = control.OperationStatus{Pending: m.server.Pending(), Fetched: int64(m.server.Fetched())}
		for _, n := range m.server.Stats() {
			s.Operations.Total += int64(n)
		}
	}
	s.Queue = control.QueueStatus{Foreground: int64(stats.Foreground), Background: int64(stats.Background)}
	return s
}

// served reports whether this process serves or has served the mount. If it returns true, the fields that start sets do not
// change any more. If the mount is being taken over, served waits for the takeover, but no longer than leaveWait.
func (m *mount) served() bool {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if m.awaitTakeover(ctx) != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cancel != nil
}

// Prefetch fetches the contents of the paths that match r.Paths, with priority over the background prefetch.
func (d *Daemon) Prefetch(ctx context.Context, r control.PrefetchRequest, progress func(control.Progress)) (control.PrefetchReply, error) {
	var reply control.PrefetchReply
	m, ok := d.find(r.Dir)
	if !ok || !m.served() {
		return reply, fault.NotMounted("prefetch", r.Dir)
	}
	// Commits are prefetched into git's object store, and paths into the cache of contents.
	if len(r.Commits) > 0 {
		return m.prefetchCommits(ctx, r, progress)
	}
	h, err := m.view.Want(ctx, matcher(r.Paths), r.Wait, func(h fetch.Counts) {
		progress(control.Progress{Phase: "prefetch", Done: int64(h.Fetched), Total: int64(h.Blobs), Unit: "blobs"})
	})
	if err != nil {
		return reply, fault.Explain("prefetch", r.Dir, err)
	}
	return control.PrefetchReply{Matched: int64(h.Blobs), Fetched: int64(h.Fetched), Bytes: h.Bytes}, nil
}

// matcher returns a function that reports whether a path matches one of specs. A spec matches its path and everything below it,
// or is a pattern of path.Match. If specs is empty, every path matches.
func matcher(specs []string) func(string) bool {
	if len(specs) == 0 {
		return func(string) bool { return true }
	}
	return func(p string) bool {
		for _, spec := range specs {
			spec = strings.Trim(path.Clean(spec), "/")
			if spec == "." || p == spec || strings.HasPrefix(p, spec+"/") {
				return true
			}
			if ok, _ := path.Match(spec, p); ok {
				return true
			}
			// As in a .gitignore file, a pattern without a slash matches the name in every directory.
			if ok, _ := path.Match(spec, path.Base(p)); ok && !strings.Contains(spec, "/") {
				return true
			}
		}
		return false
	}
}
