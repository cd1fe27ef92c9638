package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/gitsocket"
)

// A guest is a program that sees one mount and nothing else of the host, as in a container. Its
// socket is in the git directory that is visible in the mount. It speaks the same protocol, limited
// to the session of that mount: every request is about this mount, whatever directory it names, and
// a reply names no path of the host. Guests are not trusted: the kernel admits only the owner of
// the git directory and root, and connections and the size of a request are limited.
const (
	guestSocket = "artifactfs-control"
	maxGuests   = 16          // connections at once, of one mount
	guestPause  = time.Second // for the refusal of one more to be taken
)

// guestOps are the operations that guests may ask for.
var guestOps = []op{opStatus, opMounts, opPrefetch, opCheckpoint, opSync, opSessions, opSessionLog, opSessionShow, opSessionDiff, opRestore,
	opSessionSet, opSessionNote, opSessionRecord, opSessionTranscript, opSessionCompare}

// Guests is the server of one mount's guests.
type Guests struct {
	server *Server
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// ServeGuests answers the guests of the mount at dir, whose git directory is gitDir, until Close.
// The requests are worked on by h, which may know other mounts.
func ServeGuests(gitDir string, o gitsocket.Options, dir string, h Handler, log *zap.Logger) (*Guests, error) {
	l, err := gitsocket.Listen(gitDir, guestSocket, o)
	if err != nil {
		return nil, fmt.Errorf("serve guests of %s: %w", dir, err)
	}
	s := newServer("", l.UnixListener, nil, h, log)
	s.guests = &guests{dir: dir, room: make(chan struct{}, maxGuests), close: l.Close}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Guests{server: s, cancel: cancel}
	g.ended.Go(func() { s.Serve(ctx) })
	return g, nil
}

// Close cancels requests in progress and returns when all have ended.
func (g *Guests) Close() error {
	g.cancel()
	g.ended.Wait()
	return nil
}

// guests is the additional state of a Server that answers guests.
type guests struct {
	dir   string        // of the mount on the host
	room  chan struct{} // capacity maxGuests
	close func() error
}

// enter changes a request so that it is about the mount. It returns the guest's name for the mount.
func (g *guests) enter(a *asked) (called string, err error) {
	refused := &Error{Code: ExitFailed, Kind: CodePermission, Verb: string(a.op),
		Cause: "from inside of a mount only its own session can be worked with", Hint: "ask the daemon from outside of the container"}
	if !slices.Contains(guestOps, a.op) {
		return "", refused
	}
	// The names are checked before the directory of the mount replaces them.
	if leads(a.args) {
		return "", refused
	}
	switch r := a.args.(type) {
	case PrefetchRequest:
		called, r.Dir = r.Dir, g.dir
		a.args = r
	case CheckpointRequest:
		called, r.Dir = r.Dir, g.dir
		a.args = r
	case SyncRequest:
		called, r.Dir = r.Dir, g.dir
		a.args = r
	case RestoreRequest:
		called, r.Dir = r.Dir, g.dir
		a.args = r
	case SessionNoteRequest:
		called, r.Dir = r.Dir, g.dir
		a.args = r
	case SessionRecordRequest:
		called, r.Dir = r.Dir, g.dir
		a.args = r
	case SessionLogRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionShowRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionDiffRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionTranscriptRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionCompareRequest:
		called, r.Dir, r.Sides = r.Sides[0].Of, "", slices.Clone(r.Sides)
		for i := range r.Sides {
			r.Sides[i].Of = g.dir
		}
		a.args = r
	case SessionSetRequest:
		// A guest may pin a checkpoint, but not change the state of the session.
		if r.Pin == "" || r.State != "" {
			return "", refused
		}
		called, r.Of = r.Of, g.dir
		a.args = r
	case empty:
	default:
		return "", refused
	}
	return called, nil
}

// leads reports whether a request of a guest names something outside of the mount: another session,
// a session remote, which the daemon would open with the rights of the host, or a path outside of
// the mount.
func leads(args any) bool {
	outside := func(paths []string) bool {
		return slices.ContainsFunc(paths, func(p string) bool { return filepath.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") })
	}
	switch r := args.(type) {
	case PrefetchRequest:
		return outside(r.Paths)
	case RestoreRequest:
		return r.Of != "" || r.SessionRemote != "" || outside(r.Paths)
	case SessionLogRequest:
		return r.SessionRemote != ""
	case SessionShowRequest:
		return r.SessionRemote != ""
	case SessionDiffRequest:
		return r.SessionRemote != "" || r.AOf != "" || r.ARemote != ""
	case SessionCompareRequest:
		return slices.ContainsFunc(r.Sides, func(s CompareSide) bool { return s.SessionRemote != "" || !filepath.IsAbs(s.Of) })
	}
	return false
}

// leave removes information about the host from a result.
func (g *guests) leave(called string, result any) any {
	switch r := result.(type) {
	case Status:
		mounts := []MountStatus{}
		// A guest learns of its own mount only.
		for _, m := range r.Mounts {
			if m.Dir == g.dir {
				m.Dir, m.PID, m.Redirects, m.SubmoduleOf, m.Remote, m.Session = "", 0, nil, "", notPath(m.Remote), ofGuest(m.Session)
				mounts = append(mounts, m)
			}
		}
		return Status{Mounts: mounts}
	case SessionsReply:
		sessions := []SessionInfo{}
		for _, s := range r.Sessions {
			if s.Mounted && s.Dir == g.dir {
				sessions = append(sessions, infoOfGuest(s))
			}
		}
		return SessionsReply{Sessions: sessions}
	case SessionInfo:
		return infoOfGuest(r)
	case SessionShowReply: // a guest can run neither of the commands
		r.Status, r.SessionRemote, r.Link, r.ForkCommand, r.ResumeCommand = ofGuest(r.Status), notPath(r.SessionRemote), notPath(r.Link), "", ""
		return r
	case SessionCompareReply:
		r.Remote = notPath(r.Remote)
		return r
	case SyncReply:
		r.Dir, r.Session = called, ofGuest(r.Session)
		return r
	case RestoreReply:
		r.Dir = called
		return r
	}
	return result
}

// ofGuest returns the status of a session without a session remote that is a path of the host.
func ofGuest(s SessionStatus) SessionStatus {
	s.SessionRemote = notPath(s.SessionRemote)
	return s
}

// infoOfGuest returns the description of a session without directories and paths of the host.
func infoOfGuest(s SessionInfo) SessionInfo {
	s.Dir, s.Remote, s.ParentRemote, s.SessionStatus = "", notPath(s.Remote), notPath(s.ParentRemote), ofGuest(s.SessionStatus)
	s.History = slices.Clone(s.History)
	for i := range s.History { // "mounted at DIR"
		s.History[i].Reason, _, _ = strings.Cut(s.History[i].Reason, " at /")
	}
	return s
}

// notPath returns a remote, or "" if it is a path of the host.
func notPath(remote string) string {
	if filepath.IsAbs(remote) || strings.HasPrefix(remote, "file:") {
		return ""
	}
	return remote
}

// failed returns an error as a guest may see it.
func (g *guests) failed(called string, err error) *Error {
	// Causes quote paths of the host. The guest's own name for the mount replaces them.
	e := *AsError(err)
	for _, text := range []*string{&e.Object, &e.Cause, &e.Hint} {
		if called != "" {
			*text = strings.ReplaceAll(*text, g.dir, called)
		} else {
			*text = strings.ReplaceAll(*text, g.dir, ".")
		}
	}
	return &e
}

// full refuses a connection for which there is no room.
func (g *guests) full(out *sender) {
	out.sendBy(message{Error: &Error{Code: ExitFailed, Kind: CodeBusy, Verb: "talk to", Object: "daemon",
		Cause: fmt.Sprintf("%d programs in this mount talk to it already", maxGuests)}}, time.Now().Add(guestPause))
	out.conn.Close()
}

// work is Server.work for a guest.
func (g *guests) work(a asked, do func(asked) (any, error)) (any, error) {
	called, err := g.enter(&a)
	if err != nil {
		return nil, err
	}
	result, err := do(a)
	if err != nil {
		return nil, g.failed(called, err)
	}
	return g.leave(called, result), nil
}

// GuestDir returns the root of the mount around dir whose daemon can be reached from inside of it;
// false if there is none. It looks at names only and asks no daemon.
func GuestDir(dir string) (root string, ok bool) {
	// The search ends at the root directory, whose parent is itself.
	for {
		if info, err := os.Lstat(filepath.Join(dir, ".git", guestSocket)); err == nil && info.Mode().Type() == os.ModeSocket {
			return dir, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// DialGuest is Dial from inside of the mount at root, for a program that does not see the socket of
// the daemon. The requests of the Client may name root, or any other directory. Its replies call
// the mount root.
func DialGuest(ctx context.Context, root string) (*Client, error) {
	c := &Client{root: root}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c, conn.Close()
}

// dialGuest connects to the daemon from inside of a mount.
func dialGuest(ctx context.Context, root string) (*net.UnixConn, error) {
	c, err := gitsocket.Dial(ctx, filepath.Join(root, ".git"), guestSocket)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("connect from inside of %s: %w", root, ErrNoServer)
	case err != nil:
		return nil, fmt.Errorf("connect from inside of %s: %w", root, err)
	}
	return c.(*net.UnixConn), nil
}

// named puts the name of the mount into a reply to a guest.
func named(root string, reply any) {
	switch r := reply.(type) {
	case *Status:
		for i := range r.Mounts {
			r.Mounts[i].Dir = root
		}
	case *SessionsReply:
		for i := range r.Sessions {
			r.Sessions[i].Dir = root
		}
	case *SessionInfo:
		r.Dir = root
	}
}
