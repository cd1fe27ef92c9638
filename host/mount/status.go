package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/transport/via"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// Named returns the part of the status of a mount by which clients find it, and whether the mount is served or was.
func Named(m *Mount) (s control.MountStatus, served bool) {
	state, served := m.phase.State()
	s = control.MountStatus{
		ID: m.ID, Dir: m.Dir, State: state, ReadOnly: m.Request.ReadOnly, Since: m.home.Since(), PID: os.Getpid(),
		History: control.HistoryShallow,
		Session: control.SessionStatus{Name: m.Session},
	}
	if m.Parent != nil {
		s.SubmoduleOf = m.Parent.Dir
	}
	if served { // otherwise the goroutine that starts or takes over the mount may still set these fields
		s.Remote, s.Session.SessionRemote = m.contents.Store.URL(), m.Listed().SessionRemote()
	}
	return s, served
}

// Status returns the status of the mount. The numbers of files were counted at the time then or later; if then is zero,
// the status has no such numbers.
func (m *Mount) Status(ctx context.Context, then time.Time) control.MountStatus {
	s, served := Named(m)
	if !served {
		return s // as in Named
	}
	snap := m.contents.Snapshot()
	if git := m.Git().Dir(); git != nil {
		s.GitReady, s.Head = true, git.HeadName()
	} else {
		s.Head = m.Git().HeadName()
	}
	if err := m.activity.work.Failure(); err != nil {
		s.Error = err.Error()
	}
	stats := m.contents.Store.Stats()
	s.Notes = append(stats.Notices, m.attachment.Tree.Overlay().Recovery().Problems...)
	s.Notes = append(s.Notes, m.attachment.Redirects.Notes()...)
	s.Notes = append(s.Notes, m.submodules.problems()...)
	s.Notes = append(s.Notes, m.sessionSide.agent.Notices()...)
	s.Notes = append(s.Notes, m.activity.moves.Unfinished()...)
	s.Notes = append(s.Notes, m.sessionSide.locking.notes()...)
	s.Notes = append(s.Notes, m.beginning.shownCheckpoint()...)
	s.Notes = append(s.Notes, gitNotes(m)...)
	s.Session = m.Listed().Status()
	// A failure to reach the remote is reported first. Refused objects are objects whose answers were invalid three times.
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
	// A degraded mount continues to serve everything that is on this host.
	if s.Error != "" && s.State == control.StateMounted {
		s.State = control.StateDegraded
	}
	s.Ref, s.Commit = statedir.ShortRef(snap.Ref), snap.Commit.String()
	if stats.History != "" {
		s.History = control.HistoryState(stats.History)
		select {
		case <-m.Events.HistoryTried:
		default: // the store has the whole history, but the refs of the mount do not refer to it yet
			if s.History == control.HistoryComplete {
				s.History = control.HistoryDeepening
			}
		}
	}
	if !then.IsZero() {
		h := m.contents.View.CountsSince(ctx, then)
		s.Notes = append(s.Notes, m.contents.OddPaths()...) // after the count, which reads the trees
		s.Tree = control.TreeStatus{Files: int64(h.Files), Complete: snap.Whole()}
		s.Blobs = control.BlobStatus{Total: int64(h.Blobs), Fetched: int64(h.Fetched), Bytes: h.Bytes}
	}
	s.Network = control.NetworkStatus{
		Requests:   stats.Requests - m.contents.Before.Requests,
		RoundTrips: stats.RoundTrips - m.contents.Before.RoundTrips,
		Blobs:      stats.Blobs - m.contents.Before.Blobs, Bytes: stats.BytesIn - m.contents.Before.BytesIn,
		Relay: relayStatus(m.contents.Store.Remote().Stats().Relay),
	}
	if m.Session != "" && !then.IsZero() {
		s.Overlay = control.OverlayStatus{Changed: m.attachment.Changed(),
			Bytes: m.attachment.Tree.Overlay().Stats().Bytes}
	}
	s.Redirects = m.attachment.Redirects.Status()
	s.Follow = m.Following().Status()
	if m.attachment.Server != nil {
		s.Operations = control.OperationStatus{Pending: m.attachment.Server.Pending(),
			Fetched: int64(m.attachment.Server.Fetched())}
		for _, n := range m.attachment.Server.Stats() {
			s.Operations.Total += int64(n)
		}
	}
	s.Blobs.Profile = m.contents.Profiles.Status()
	s.Queue = control.QueueStatus{Foreground: int64(stats.Foreground), Background: int64(stats.Background)}
	return s
}

// gitNotes returns a note if programs have removed ".git" from the root of the mount, or HEAD from the git directory,
// so that git finds no repository there.
func gitNotes(m *Mount) []string {
	dir := control.ShellWord(m.Dir)
	if worktree.GitRemoved(m.attachment.Tree) {
		return []string{"the name .git was removed, so git finds no repository; " +
			"run artifactfs session restore -C " + dir + " @ .git to restore it"}
	}
	if m.Git().Dir() == nil {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(m.home.GitDir(), "HEAD")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	note := "HEAD was removed from the git directory, so git finds no repository"
	if p, _ := m.sessionSide.agent.Newest(); p.ID != "" {
		note += fmt.Sprintf("; run artifactfs session fork -C %s %s NEWDIR to mount the newest checkpoint with its branches",
			dir, p.ID)
	}
	return []string{note}
}

// relayStatus returns the status of the relay u for the status of a mount, or nil if u is nil.
func relayStatus(u *via.Usage) *control.RelayStatus {
	if u == nil {
		return nil
	}
	s := &control.RelayStatus{URL: u.URL, Answers: u.Answers, FallThroughs: u.FallThroughs, Paused: u.Paused,
		LastFailure: u.LastFailure}
	if !u.FailedAt.IsZero() {
		s.FailedAt = &u.FailedAt
	}
	return s
}

// Served reports whether this process serves the mount, or has served it. If it returns true, the fields that start
// sets do not change any more. If the mount is being taken over, Served waits for the end of the takeover, for at most
// LeaveWait.
func (m *Mount) Served() bool {
	ctx, cancel := context.WithTimeout(context.Background(), LeaveWait)
	defer cancel()
	if m.AwaitTakeover(ctx) != nil {
		return false
	}
	return m.phase.Served()
}

// Ended returns a channel that is closed when all parts of the mount have ended.
func (m *Mount) Ended() <-chan struct{} { return m.phase.Gone() }

// Observed returns the FUSE server and the view of the mount for callers that follow its requests, or false if the
// mount is not attached to the kernel.
func (m *Mount) Observed() (*fuse.Server, *fetch.RawView, bool) {
	if m.attachment.Server == nil {
		return nil, nil, false
	}
	return m.attachment.Server, m.contents.View.RawView, true
}

// Figures has the values of a mount for the metrics.
type Figures struct {
	control.MountStatus
	Ops map[string]uint64 // number of kernel requests by operation
	// number of kernel requests that failed because of the host or the remote, by the name of the errno
	Fails map[string]uint64
	Store *fetch.Store  // store of the mount; nil while the mount is being prepared
	Agent agent.Figures // counters of the session
}

// Figures returns the values of the mount for the metrics. The numbers of files were counted at the time then or later.
func (m *Mount) Figures(ctx context.Context, then time.Time) Figures {
	f := Figures{MountStatus: m.Status(ctx, then)}
	if m.Served() {
		f.Store, f.Agent = m.contents.Store, m.sessionSide.agent.Figures()
		if m.attachment.Server != nil {
			f.Ops, f.Fails = m.attachment.Server.Stats(), m.attachment.Server.Failures()
		}
	}
	return f
}
