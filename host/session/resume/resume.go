// Package resume prepares the session repository of a mount that starts from a checkpoint instead of a commit: a
// session that is resumed on another machine, a fork, or a mount that shows one checkpoint. It stores the checkpoint
// and everything that the session owns in that repository. The tree of the checkpoint is the base tree of the mount,
// and the overlay is empty.
//
// The objects come from one of two places:
//
//	another mount on this host  its packs are hard-linked, whatever their size (Link)
//	a session remote            four requests fetch the refs, the metadata, the checkpoints with their trees, and the files
//	                            of the checkpoint state (Resume, Fork)
//
// File contents are not copied. Contents that were created in the session are fetched from the session remote when they
// are read; all others are fetched from the mounted remote.
package resume

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Start describes the checkpoint that a mount starts from. Its objects are in the session repository of the mount.
type Start struct {
	Checkpoint session.Checkpoint // checkpoint that the mount shows at its start
	// full name of the ref that the session started from; "" if the session started from a commit
	Ref      string
	Base     object.ID // base commit of the session; zero if the session started on an unborn branch
	Format   object.Format
	Snapshot *fetch.Snapshot // snapshot of Base; nil if it was not fetched yet
	// ContentsFrom is the URL of another session's session remote, from which missing contents can be fetched, possibly
	// with a secret; "" if no such session remote is needed.
	ContentsFrom string
	// Newer has the refs whose values on the session remote and in Checkpoint differ, with their values on the session
	// remote.
	Newer map[string]object.ID
	Own   map[string]bool // refs in Newer that this session itself has pushed
}

// Target describes the mount that is to start from a checkpoint.
type Target struct {
	Session string       // session of the mount; "" if it has none
	Mounted string       // URL of the mounted remote
	RepoDir string       // directory of the mount's session repository
	Remote  *thin.Remote // session remote; nil if the session has only the embedded one
	Since   time.Time    // time of the mount
	// Listed is called with the refs of the session remote when they are known, even if the session remote does not
	// have the session. It may be nil.
	Listed func(*thin.Listing)

	// RepoOptions returns the options for opening RepoDir as the repository of the session called name with the object
	// format f.
	RepoOptions func(f object.Format, name string) session.RepoOptions
	Objects     Objects
	Own         []*fetch.Local // object directories of the mount
	Store       Store
	Claims      Claims
}

// Objects reads and stores objects in the session repository of the mount. It is implemented by *fetch.Local.
type Objects interface {
	// Fetch fetches objects and stores them.
	Fetch(ctx context.Context, r fetch.FetchRequest) (fetch.Fetched, error)
	// KeepAs stores objects, whose IDs have the object format f.
	KeepAs(ctx context.Context, f object.Format, objects []odb.Outgoing) error
	// Size returns the type and the size of an object on this host.
	Size(id object.ID) (object.Type, int64, error)
}

// Store is the store of the mounted remote, which fetches commits of that remote. It is implemented by *fetch.Store.
type Store interface {
	// Connect connects to the mounted remote in the background.
	Connect()
	// Resume returns the snapshot of a commit that was mounted before, and fetches it if it is missing.
	Resume(ctx context.Context, b fetch.Base) (*fetch.Snapshot, error)
}

// Claims claims the lane of a session that is being resumed. It is implemented by *agent.Agent.
type Claims interface {
	// ClaimAhead starts to push a claim in the background. ref is the session's metadata ref, and old is the commit of
	// this ref on the session remote.
	ClaimAhead(ctx context.Context, remote *thin.Remote, ref string, old object.ID) *agent.AheadClaim
	// Refused returns an error if this host may not claim the session with the metadata meta.
	Refused(meta session.Meta) error
}

// Acquire fetches the base commit of the session, if it is missing, and sets s.Snapshot.
func (t *Target) Acquire(ctx context.Context, s *Start) error {
	snap, err := t.Store.Resume(ctx, fetch.Base{Ref: s.Ref, Commit: s.Base, Time: t.Since, Format: s.Format, Own: t.Own})
	if err != nil {
		return fault.Remote(err)
	}
	s.Snapshot = snap
	return nil
}

// acquireBeside starts Acquire in the background. The function wait waits until Acquire has returned, and returns its
// error. The function stop cancels Acquire and waits until it has returned.
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

// Find returns the checkpoint to which name refers; "" refers to the newest one. If name is a turn, Find reads the
// transcript and calls contents to fetch missing contents of the transcript. contents is nil if no contents are
// missing.
func Find(repo *session.Repo, name string, contents func(ids []object.ID) error) (session.Checkpoint, error) {
	if name == "" {
		name = "@"
	}
	if strings.HasPrefix(name, transcript.TurnPrefix) {
		return transcript.FindTurn(repo, name, contents)
	}
	return repo.Find(name)
}

// keepBase creates a ref for the checkpoint that the mount starts from, so that gc keeps it even if its lane is
// removed.
func keepBase(ctx context.Context, repo *session.Repo, p session.Checkpoint) error {
	return repo.Update(ctx, []session.RefChange{{Name: session.BaseRef(repo.Session()), New: p.Commit, Force: true}})
}

// setRefs sets refs in the repository to their values on the session remote, which are in the map there. It skips the
// refs for which the function which returns false.
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

// baseCommit returns the ID of the base commit of the session with the metadata meta, or zero if the session started on
// an unborn branch.
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
