package daemon

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

// mountStart is the start of a mount, if the request alone does not name it.
type mountStart struct {
	parent *mount           // parent of a submodule
	base   *statedir.Record // record of an earlier mount without changes, whose base is used again
	from   *origin          // checkpoint of a session on this host
	far    *farOrigin       // checkpoint of a session on a session remote
	known  *knownSession    // refs and meta of the resumed session; nil if they were not read yet
}

// origin is a checkpoint of a session on this host that a mount starts from.
type origin struct {
	home       string // home of that session, or of a mount that shows one checkpoint of it
	session    string
	record     statedir.Record
	checkpoint session.Checkpoint
	// carried holds the session's options at the time of the fork.
	carried control.SessionOptions
}

// local returns the checkpoint in the form that package resume uses. The parameter remote is the session remote of the new
// mount; it may be nil. ContentsFrom is set to the session remote of the parent if remote is a different one and may lack the
// contents.
func (o origin) local(remote *thin.Remote) resume.Local {
	l := resume.Local{
		RepoDir: filepath.Join(o.home, statedir.SessionRepoName), Session: o.session, Checkpoint: o.checkpoint, Ref: o.record.Ref,
	}
	switch at := o.carried.Remote; at {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		// If the parent session is itself a fork, some contents may be stored only on the session remote of its own parent.
		if o.record.Checkpoint != nil {
			l.ContentsFrom = o.record.Checkpoint.From
		}
	default:
		// If both sessions have the same session remote, contents are fetched from it without ContentsFrom.
		if remote == nil || remote.URL() != statedir.WithoutSecrets(at) {
			l.ContentsFrom = statedir.WithoutSecrets(at)
		}
	}
	return l
}

// origin returns checkpoint p of the session as the start of a mount.
func (h sessionHome) origin(p session.Checkpoint) *origin {
	return &origin{home: h.dir, session: h.session, record: h.record, checkpoint: p, carried: h.carried}
}

// sessionHome describes where a session is stored on this host, whether it is mounted or not. The home is the mount's directory
// below the state directory. For a mount that shows one checkpoint read-only, it is the home of that mount.
type sessionHome struct {
	dir     string
	session string
	record  statedir.Record
	mount   *catalog.Mounted // the served mount; nil if there is none
	// carried holds the options of the session, among them its session remote.
	carried control.SessionOptions
}

// request returns r with the remote of the session filled in. If r names no other remote, it also fills in the tokens of the
// session's mount.
func (h sessionHome) request(r control.MountRequest) control.MountRequest {
	if r.Remote == "" || r.Remote == h.record.Remote {
		r.Remote = h.record.Remote
		if h.mount != nil {
			now := h.mount.Request()
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

// shown returns the checkpoint that this mount started from.
func (h sessionHome) shown() (session.Checkpoint, error) {
	commit, err := object.ParseID(h.record.Checkpoint.Commit)
	if err != nil {
		return session.Checkpoint{}, err
	}
	repo, err := h.open()
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return repo.CheckpointAt(commit)
}

// find returns the checkpoint of the session that id refers to; an empty id refers to the newest one. It returns the zero
// checkpoint if id is empty and the session has no repository yet.
func (h sessionHome) find(ctx context.Context, id string) (session.Checkpoint, error) {
	repo, err := h.open()
	// The session has no checkpoint yet.
	if errors.Is(err, fs.ErrNotExist) && id == "" {
		return session.Checkpoint{}, nil
	}
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return catalog.Find(ctx, repo, h.mount, id)
}

// open opens the session's repository read-only. The error matches fs.ErrNotExist if the session has no repository.
func (h sessionHome) open() (*session.Repo, error) {
	base, err := h.record.Base()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(h.dir, statedir.SessionRepoName)
	stores, err := os.ReadFile(filepath.Join(dir, "objects", "info", "alternates"))
	if err != nil {
		return nil, err
	}
	return session.OpenRepo(dir, session.RepoOptions{Format: base.Format, Session: h.session, ReadOnly: true, Borrow: pathLines(stores)})
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

// farOrigin is the start of a mount that forks a session on a session remote: the parent session and its checkpoint.
type farOrigin struct {
	*resume.Parent
	at string // URL of the session remote; it may hold a secret
}

// knownSession is a session whose metadata was read from its session remote before the mount was registered, because the request
// does not name the repository to mount. The connection to the session remote stays open, so that the mount can use it.
type knownSession struct {
	*resume.Known
	at    string         // URL of the session remote; it may hold a secret
	login *remotes.Login // credentials that the connection was opened with
	taken bool           // a mount owns the connection and closes it
}

// take returns the open connection to the session remote, and the caller closes it later. It returns nil if k is nil, if the
// connection was taken before, or if it was opened with another URL than the parameter at or with other credentials than g.
func (k *knownSession) take(all *remotes.Remotes, at string, g remotes.Given) *thin.Remote {
	if k == nil || k.taken || k.at != at || !all.Matches(k.login, g) {
		return nil
	}
	k.taken = true
	return k.Remote
}

// close closes the connection unless take has returned it. k may be nil.
func (k *knownSession) close() {
	if k != nil && !k.taken {
		k.Remote.Close()
	}
}

// explainResume explains why the session of a mount, or the checkpoint of it that is to be shown, cannot be mounted.
func explainResume(r control.MountRequest, err error) *control.Error {
	session := "session " + r.Session
	return fault.Subject{
		Area: fault.Resume, Verb: "mount", Object: session,
		Checkpoint: "checkpoint " + r.At + " of " + session, Far: r.SessionOptions.Remote != "",
	}.Explain(err)
}
