// Package resume stores a checkpoint, with everything that the session owns, in the session repository of a mount that starts
// from it instead of the tree of a commit: a session that is resumed on another machine, a fork, or a mount that shows one
// checkpoint. The tree of the checkpoint is the base tree of such a mount, and its overlay is empty.
//
//	from another home on this host  its packs are hard-linked, whatever their size (Link)
//	from a session remote           four requests: refs, metadata, checkpoints with their trees, and the small files of
//	                                the checkpoint state (Resume, Fork)
//
// File contents are not copied. Contents that the session created are fetched from the session remote when they are read; all
// others are fetched from the mounted remote.
package resume

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Start is the checkpoint that a mount starts from. Its objects are in the repository of the mount's home.
type Start struct {
	Checkpoint session.Checkpoint
	Ref        string    // full name of the ref that the session started from; "" if it was a commit
	Base       object.ID // base commit of the session; zero for an unborn branch
	Format     object.Format
	Snapshot   *fetch.Snapshot // snapshot of Base; nil if it was not acquired yet
	// ContentsFrom is the URL of the session remote of another session that has contents which are missing; "" if there
	// is none. It may contain a secret.
	ContentsFrom string
	Newer        map[string]object.ID // value on the session remote of each ref whose value differs from that in Checkpoint
	Own          map[string]bool      // refs in Newer that the session itself has moved
}

// Target is the mount that starts from a checkpoint.
type Target struct {
	Session string       // session of the mount; "" if it has none
	Mounted string       // URL of the mounted remote
	RepoDir string       // session repository in the home of the mount
	Remote  *thin.Remote // session remote; nil if there is none but RepoDir
	Since   time.Time    // time of the mount

	// RepoOptions returns the options for opening RepoDir.
	RepoOptions func(f object.Format, name string) session.RepoOptions
	Objects     Objects
	Store       Store
	Claims      Claims
}

// Objects are the objects of the repository in RepoDir. It is implemented by *fetch.Local.
type Objects interface {
	Fetch(ctx context.Context, r fetch.FetchRequest) (fetch.Fetched, error)
	KeepAs(ctx context.Context, f object.Format, objects []odb.Outgoing) error
	Size(id object.ID) (object.Type, int64, error)
}

// Store is the store of the mounted remote. It is implemented by *fetch.Store.
type Store interface {
	// Connect connects to the mounted remote in the background.
	Connect()
	// Resume acquires a commit that was mounted before.
	Resume(ctx context.Context, b fetch.Base) (*fetch.Snapshot, error)
}

// Claims claims the lane of a session that is resumed. It is implemented by *agent.Agent.
type Claims interface {
	ClaimAhead(ctx context.Context, remote *thin.Remote, ref string, old object.ID) *agent.AheadClaim
	Refused(meta session.Meta) error
}

// Acquire acquires the base commit of the session and sets s.Snapshot.
func (t *Target) Acquire(ctx context.Context, s *Start) error {
	snap, err := t.Store.Resume(ctx, fetch.Base{Ref: s.Ref, Commit: s.Base, Time: t.Since, Format: s.Format})
	if err != nil {
		return fault.Remote(err)
	}
	s.Snapshot = snap
	return nil
}

// acquireBeside is Acquire in the background. wait returns its result; stop cancels it and waits for it.
func (t *Target) acquireBeside(ctx context.Context, s *Start) (wait func() error, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = t.Acquire(ctx, s)
	}()
	wait = func() error {
		<-done
		return err
	}
	return wait, func() {
		cancel()
		<-done
	}
}

// Find returns the checkpoint that name stands for; "" is the newest. contents fetches contents of the transcript, which
// are needed to find turns; it may be nil.
func Find(repo *session.Repo, name string, contents func(ids []object.ID) error) (session.Checkpoint, error) {
	if name == "" {
		name = "@"
	}
	if strings.HasPrefix(name, transcript.TurnPrefix) {
		return transcript.FindTurn(repo, name, contents)
	}
	return repo.Find(name)
}

// keepBase protects the checkpoint that the mount starts from by a ref, so that it stays even if its lane is removed.
func keepBase(ctx context.Context, repo *session.Repo, p session.Checkpoint) error {
	return repo.Update(ctx, []session.RefChange{{Name: session.BaseRef(repo.Session()), New: p.Commit, Force: true}})
}

// setRefs moves the refs that which selects to their values on the session remote.
func setRefs(ctx context.Context, repo *session.Repo, there map[string]object.ID, which func(ref string) bool) error {
	var changes []session.RefChange
	for ref, id := range there {
		if which(ref) {
			changes = append(changes, session.RefChange{Name: ref, New: id, Force: true})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return repo.Update(ctx, changes)
}

// baseCommit returns the base commit of a session; zero for an unborn branch.
func baseCommit(meta session.Meta) (object.ID, error) {
	if meta.Base == "" {
		return object.ID{}, nil
	}
	id, err := object.ParseID(meta.Base)
	if err != nil {
		return id, fmt.Errorf("read session %s: %w", meta.Session, err)
	}
	return id, nil
}
