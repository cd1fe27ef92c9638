// Package origin describes what a mount starts from if its request does not name a commit: a checkpoint of a session on this host, or
// of a session on a session remote.
package origin

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// Local is a checkpoint of a session on this host that a mount starts from.
type Local struct {
	Home       string // home of that session, or of a mount that shows one checkpoint of it
	Session    string
	Record     statedir.Record
	checkpoint session.Checkpoint
	// carried holds the session's options at the time of the fork.
	Carried control.SessionOptions
}

// Resume returns the checkpoint in the form that package resume uses. The parameter remote is the session remote of the new
// mount; it may be nil. ContentsFrom is set to the session remote of the parent if remote is a different one and may lack the
// contents.
func (o Local) Resume(remote *thin.Remote) resume.Local {
	l := resume.Local{
		RepoDir: filepath.Join(o.Home, statedir.SessionRepoName), Session: o.Session, Checkpoint: o.checkpoint, Ref: o.Record.Ref,
	}
	switch at := o.Carried.Remote; at {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		// If the parent session is itself a fork, some contents may be stored only on the session remote of its own parent.
		if o.Record.Checkpoint != nil {
			l.ContentsFrom = o.Record.Checkpoint.From
		}
	default:
		// If both sessions have the same session remote, contents are fetched from it without ContentsFrom.
		if remote == nil || remote.URL() != statedir.WithoutSecrets(at) {
			l.ContentsFrom = statedir.WithoutSecrets(at)
		}
	}
	return l
}

// SessionObjects returns the directory of the objects that the session in a home owns.
func SessionObjects(home string) string {
	return filepath.Join(home, statedir.SessionRepoName, "objects")
}

// Origin returns checkpoint p of the session as the start of a mount.
func (h Home) Origin(p session.Checkpoint) *Local {
	return &Local{Home: h.Dir, Session: h.Session, Record: h.Record, checkpoint: p, Carried: h.Carried}
}

// Home describes where a session is stored on this host, whether it is mounted or not. The home is the mount's directory
// below the state directory. For a mount that shows one checkpoint read-only, it is the home of that mount.
type Home struct {
	Dir     string
	Session string
	Record  statedir.Record
	Mounted *catalog.Mounted // the served mount; nil if there is none
	// carried holds the options of the session, among them its session remote.
	Carried control.SessionOptions
}

// Complete returns r with the remote of the session filled in. If r names no other remote, it also fills in the tokens of the
// session's mount.
func (h Home) Complete(r control.MountRequest) control.MountRequest {
	if r.Remote == "" || r.Remote == h.Record.Remote {
		r.Remote = h.Record.Remote
		if h.Mounted != nil {
			now := h.Mounted.Request()
			r.Remote = now.Remote // the URL may contain a secret
			// A caller of this daemon may use the tokens of a mount of the same remote.
			if r.Token == "" && r.TokenFile == "" {
				r.Token, r.TokenFile = now.Token, now.TokenFile
			}
			if r.SessionToken == "" && r.SessionTokenFile == "" {
				r.SessionToken, r.SessionTokenFile = now.SessionToken, now.SessionTokenFile
			}
		}
	}
	// The fork starts from a checkpoint, and not from a ref.
	r.Ref = ""
	return r
}

// Shown returns the checkpoint that this mount started from.
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

// Find returns the checkpoint of the session that id refers to; an empty id refers to the newest one. It returns the zero
// checkpoint if id is empty and the session has no repository yet.
func (h Home) Find(ctx context.Context, id string) (session.Checkpoint, error) {
	repo, err := h.Open()
	// The session has no checkpoint yet.
	if errors.Is(err, fs.ErrNotExist) && id == "" {
		return session.Checkpoint{}, nil
	}
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return catalog.Find(ctx, repo, h.Mounted, id)
}

// Open opens the session's repository read-only. The error matches fs.ErrNotExist if the session has no repository.
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
	return session.OpenRepo(dir, session.RepoOptions{Format: base.Format, Session: h.Session, ReadOnly: true, Borrow: pathLines(stores)})
}

// pathLines returns the lines of a file that are absolute paths.
func pathLines(text []byte) (paths []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); filepath.IsAbs(line) {
			paths = append(paths, line)
		}
	}
	return paths
}

// Far is the start of a mount that forks a session on a session remote: the parent session and its checkpoint.
type Far struct {
	*resume.Parent
	At string // URL of the session remote; it may hold a secret
}

// KnownSession is a session whose metadata was read from its session remote before the mount was registered, because the request
// does not name the repository to mount. The connection to the session remote stays open, so that the mount can use it.
type KnownSession struct {
	*resume.Known
	At    string         // URL of the session remote; it may hold a secret
	Login *remotes.Login // credentials that the connection was opened with
	taken bool           // a mount owns the connection and closes it
}

// Take returns the open connection to the session remote, and the caller closes it later. It returns nil if k is nil, if the
// connection was taken before, or if it was opened with another URL than the parameter at or with other credentials than g.
func (k *KnownSession) Take(all *remotes.Remotes, at string, g remotes.Given) *thin.Remote {
	if k == nil || k.taken || k.At != at || !all.Matches(k.Login, g) {
		return nil
	}
	k.taken = true
	return k.Remote
}

// Close closes the connection unless Take has returned it. k may be nil.
func (k *KnownSession) Close() {
	if k != nil && !k.taken {
		k.Remote.Close()
	}
}

// Explain explains why the session of a mount, or the checkpoint of it that is to be shown, cannot be mounted.
func Explain(r control.MountRequest, err error) *control.Error {
	session := "session " + r.Session
	return fault.Subject{
		Area: fault.Resume, Verb: "mount", Object: session,
		Checkpoint: "checkpoint " + r.At + " of " + session, Far: r.SessionOptions.Remote != "",
	}.Explain(err)
}
