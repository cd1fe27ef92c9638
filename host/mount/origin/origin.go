// Package origin describes what a mount starts from if its request names no commit: a checkpoint of a session on this
// host, or of a session on a session remote.
package origin

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// Local is a checkpoint of a session on this host, from which a mount starts.
type Local struct {
	Home       string // home of that session, or of a mount that shows one of its checkpoints
	Session    string
	Record     statedir.Record
	checkpoint session.Checkpoint
	// Carried has the session's options at the time of the fork.
	Carried control.SessionOptions
	// Times are the times of the files in the parent session; nil if the checkpoint is not its present state.
	Times *worktree.Times
	// Besides are the files that a fork has in addition to those of the checkpoint.
	Besides Besides
}

// Besides are the files that a fork has in addition to those of a checkpoint.
type Besides struct {
	Taken  *capture.Taken // nil if nothing is carried
	Failed string         // for users: why nothing is carried that was to be; "" if there is no such reason
}

// Files returns the files, or nil if nothing is carried.
func (b Besides) Files() *carry.Files {
	if b.Taken == nil {
		return nil
	}
	return b.Taken.Files
}

// Checkpoint returns the ID of the checkpoint, or "" if the session has none.
func (o Local) Checkpoint() session.CheckpointID { return o.checkpoint.ID }

// LeftOut returns the number of paths that the checkpoint leaves out.
func (o Local) LeftOut() int64 { return o.checkpoint.Left }

// Resume converts the checkpoint into the type that package resume uses. remote is the session remote of the new mount,
// or nil. ContentsFrom is set to the session remote of the parent session if that is a different one, because remote
// may lack contents of the parent.
func (o Local) Resume(remote *thin.Remote) resume.Local {
	l := resume.Local{
		RepoDir: filepath.Join(o.Home, statedir.SessionRepoName), Session: o.Session, Checkpoint: o.checkpoint,
		Ref: o.Record.Ref,
	}
	switch at := o.Carried.Remote; at {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		// If the parent session is itself a fork, some contents may be only on the session remote of its own parent.
		if o.Record.Checkpoint != nil {
			l.ContentsFrom = o.Record.Checkpoint.From
		}
	default:
		// If both sessions have the same session remote, ContentsFrom is not needed.
		if remote == nil || remote.URL() != statedir.WithoutSecrets(at) {
			l.ContentsFrom = statedir.WithoutSecrets(at)
		}
	}
	return l
}

// SessionObjects returns the path of the object directory of the session repository in the directory home.
func SessionObjects(home string) string {
	return filepath.Join(home, statedir.SessionRepoName, "objects")
}

// Origin returns the checkpoint p of the session as the checkpoint from which a mount starts.
func (h Home) Origin(p session.Checkpoint) *Local {
	return &Local{Home: h.Dir, Session: h.Session, Record: h.Record, checkpoint: p, Carried: h.Carried}
}

// Home describes the home of a session on this host, whether or not the session is mounted. For a mount that shows one
// checkpoint read-only, it describes the home of that mount.
type Home struct {
	Dir     string
	Session string
	Record  statedir.Record
	Mounted *catalog.Mounted // mount that serves the session; nil if there is none
	// Carried has the options of the session, such as its session remote.
	Carried control.SessionOptions
}

// Complete returns the mount request r with the remote of the session. If r names no other remote, the result also has
// the tokens of the session's mount: the session token only if the session remote in r is on the host of the mount's
// session remote.
func (h Home) Complete(r control.MountRequest) control.MountRequest {
	if r.Remote == "" || r.Remote == h.Record.Remote {
		r.Remote = h.Record.Remote
		if h.Mounted != nil {
			now := h.Mounted.Request()
			r.Remote = now.Remote // the record contains the URL without secrets, and the mount may have one with them
			// A client of this daemon may use the tokens of a mount that has the same remote.
			if r.Token == "" && r.TokenFile == "" {
				r.Token, r.TokenFile = now.Token, now.TokenFile
			}
			if r.SessionToken == "" && r.SessionTokenFile == "" {
				now.SessionOptions = h.Carried
				now = remotes.WithSessionRemote(now, r.SessionOptions.Remote)
				r.SessionToken, r.SessionTokenFile = now.SessionToken, now.SessionTokenFile
			}
		}
	}
	// A ref is not needed, because the mount starts from a checkpoint.
	r.Ref = ""
	return r
}

// WithRules returns the options o of a fork with the rules of the session that decide what checkpoints contain, except
// those that o sets. The checkpoints of a fork then leave out what those of its parent leave out, so that they do not
// contain the files that are carried.
func (h Home) WithRules(o control.SessionOptions) control.SessionOptions {
	if o.Include == nil {
		o.Include = h.Carried.Include
	}
	if o.Exclude == nil {
		o.Exclude = h.Carried.Exclude
	}
	o.NoDenyList = o.NoDenyList || h.Carried.NoDenyList
	o.MaxFileSize = cmp.Or(o.MaxFileSize, h.Carried.MaxFileSize)
	return o
}

// Shown returns the checkpoint from which the mount of this home has started.
func (h Home) Shown() (session.Checkpoint, error) {
	commit, err := object.ParseID(h.Record.Checkpoint.Commit)
	if err != nil {
		return session.Checkpoint{}, err
	}
	repo, err := h.Open()
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return repo.CheckpointAt(commit)
}

// Find returns the checkpoint of the session with the given ID, or the newest one if id is "". It returns the zero
// checkpoint if id is "" and the session has no repository yet.
func (h Home) Find(ctx context.Context, id string) (session.Checkpoint, error) {
	repo, err := h.Open()
	// A session without a repository has no checkpoint yet.
	if errors.Is(err, fs.ErrNotExist) && id == "" {
		return session.Checkpoint{}, nil
	}
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return catalog.Find(ctx, repo, h.Mounted, id)
}

// Open opens the session repository for reading. The error wraps fs.ErrNotExist if there is none.
func (h Home) Open() (*session.Repo, error) {
	base, err := h.Record.Base()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(h.Dir, statedir.SessionRepoName)
	stores, err := os.ReadFile(filepath.Join(dir, "objects", "info", "alternates"))
	if err != nil {
		return nil, err
	}
	return session.OpenRepo(dir, session.RepoOptions{Format: base.Format, Session: h.Session, ReadOnly: true,
		Borrow: pathLines(stores)})
}

// pathLines returns those lines of text that are absolute paths.
func pathLines(text []byte) (paths []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); filepath.IsAbs(line) {
			paths = append(paths, line)
		}
	}
	return paths
}

// Far is a checkpoint of a session on a session remote, from which a mount starts as a fork.
type Far struct {
	*resume.Parent
	At string // URL of the session remote, which may contain a secret
}

// KnownSession is a session whose metadata were read from its session remote before the mount was added to the
// registry, because the request does not name the repository to mount. The connection to the session remote remains
// open, so that the mount can use it.
type KnownSession struct {
	*resume.Known
	At    string         // URL of the session remote, which may contain a secret
	Login *remotes.Login // login with which the connection was opened
	taken bool           // whether Take has returned the connection, so that Close must not close it
}

// Take returns the open connection to the session remote, which the caller must close. It returns nil if k is nil, if
// Take was called before, or if the connection was opened with another URL than at or other credentials than g.
func (k *KnownSession) Take(all *remotes.Remotes, at string, g remotes.Given) *thin.Remote {
	if k == nil || k.taken || k.At != at || !all.Matches(k.Login, g) {
		return nil
	}
	k.taken = true
	return k.Remote
}

// Close closes the connection, unless Take was called. k may be nil.
func (k *KnownSession) Close() {
	if k != nil && !k.taken {
		k.Remote.Close()
	}
}

// Explain returns an error, with a hint, that states why the session or the checkpoint in the mount request r cannot be
// mounted. err is the cause.
func Explain(r control.MountRequest, err error) *control.Error {
	session := "session " + r.Session
	return fault.Subject{
		Area: fault.Resume, Verb: "mount", Object: session,
		Checkpoint: "checkpoint " + r.At + " of " + session, Far: r.SessionOptions.Remote != "",
	}.Explain(err)
}
