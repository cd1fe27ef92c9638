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

	"github.com/artifactfs/artifactfs/git/gitsocket"
)

// A guest is a program that sees one mount and nothing else of the host, such as a program in a container. Guests use a
// socket in the git directory that is visible in the mount. The socket has the same protocol as the daemon's socket,
// but only requests for the session of that mount are permitted. Every request applies to this mount, whatever
// directory it names. A reply contains no paths of the host. Guests are not trusted: the kernel lets only root and the
// owner of the git directory connect, and the number of connections and the size of a request are limited.
const (
	guestSocket = "artifactfs-control"
	maxGuests   = 16          // maximum number of simultaneous connections to one mount
	guestPause  = time.Second // timeout for sending the error to a guest whose connection is refused
)

// guestOps are the operations that guests may request.
var guestOps = []op{opStatus, opMounts, opPrefetch, opCheckpoint, opSync, opSessions, opSessionLog, opSessionShow,
	opSessionDiff, opRestore,
	opSessionSet, opSessionNote, opSessionRecord, opSessionTranscript, opSessionCompare, opSessionApprove,
	opSessionApprovals,
	opSessionAnnotate, opSessionAnnotations, opSessionLocks}

// Guests is the server for the guests of one mount.
type Guests struct {
	server *Server            // server that answers the requests
	cancel context.CancelFunc // cancels the requests in progress and ends the server
	ended  sync.WaitGroup     // waits for the goroutine of the server
}

// ServeGuests starts a server that answers requests of the guests of the mount at dir until Close is called. gitDir is
// the git directory of the mount. The handler h carries out the requests. If h also serves other mounts, guests cannot
// access those mounts.
func ServeGuests(gitDir string, o gitsocket.Options, dir string, h Handler, log *zap.Logger) (*Guests, error) {
	l, err := gitsocket.Listen(gitDir, guestSocket, o)
	if err != nil {
		return nil, fmt.Errorf("serve requests from inside mount %s: %w", dir, err)
	}
	s := newServer("", l.UnixListener, nil, h, log)
	s.guests = &guests{dir: dir, room: make(chan struct{}, maxGuests), close: l.Close}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Guests{server: s, cancel: cancel}
	g.ended.Go(func() { s.Serve(ctx) })
	return g, nil
}

// Close cancels the requests in progress and returns after all of them have ended.
func (g *Guests) Close() error {
	g.cancel()
	g.ended.Wait()
	return nil
}

// guests is the additional state of a Server that answers requests of guests.
type guests struct {
	dir   string        // directory of the mount on the host
	room  chan struct{} // holds one element for each connection; its capacity is maxGuests
	close func() error  // closes the socket
}

// enter changes the request a so that it applies to the mount. called is the name by which the guest refers to the
// mount. It returns an error if guests may not send this request.
func (g *guests) enter(a *asked) (called string, err error) {
	refused := &Error{Code: ExitFailed, Kind: CodePermission, Verb: string(a.op),
		Cause: "a request from inside a mount can only name the mount's own session",
		Hint:  "run the command outside the container"}
	if !slices.Contains(guestOps, a.op) {
		return "", refused
	}
	// Check the paths in the request before the guest's name of the mount is replaced by its directory on the host.
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
	case SessionAnnotateRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionAnnotationsRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionLocksRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionCompareRequest:
		called, r.Dir, r.Sides = r.Sides[0].Of, "", slices.Clone(r.Sides)
		for i := range r.Sides {
			r.Sides[i].Of = g.dir
		}
		a.args = r
	case SessionSetRequest:
		// A guest may pin a checkpoint, and change title, task and tags of the session, but not its state, owner,
		// lifetime or hold.
		if r.Pin == "" && r.Profile == nil || r.State != "" || r.Profile != nil && r.Profile.Restricted() {
			return "", refused
		}
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionApproveRequest:
		// A guest may request an approval, but not grant or deny one with the permissions of the host's user.
		if r.Op != ApproveRequest {
			return "", refused
		}
		called, r.Of = r.Of, g.dir
		a.args = r
	case SessionApprovalsRequest:
		called, r.Of = r.Of, g.dir
		a.args = r
	case MountsRequest, empty:
	default:
		return "", refused
	}
	return called, nil
}

// leads reports whether the arguments of a guest's request refer to something outside of the mount: another session, a
// path outside of the mount, or a session remote. A session remote is refused because the daemon would open it with the
// permissions of the host's user.
func leads(args any) bool {
	outside := func(paths []string) bool {
		return slices.ContainsFunc(paths,
			func(p string) bool { return filepath.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") })
	}
	switch r := args.(type) {
	case PrefetchRequest:
		return outside(r.Paths)
	case RestoreRequest:
		return r.Of != "" || r.SessionRemote != "" || outside(r.Paths)
	case SessionAnnotateRequest:
		return r.SessionRemote != ""
	case SessionAnnotationsRequest:
		return r.SessionRemote != ""
	case SessionLocksRequest:
		return r.SessionRemote != "" || r.Force
	case SessionLogRequest:
		return r.SessionRemote != ""
	case SessionShowRequest:
		return r.SessionRemote != ""
	case SessionDiffRequest:
		return r.SessionRemote != "" || r.AOf != "" || r.ARemote != ""
	case SessionSetRequest:
		return r.SessionRemote != ""
	case SessionApproveRequest:
		return r.SessionRemote != "" || r.To != ""
	case SessionApprovalsRequest:
		return r.SessionRemote != "" || r.To != ""
	case SessionCompareRequest:
		return slices.ContainsFunc(r.Sides,
			func(s CompareSide) bool { return s.SessionRemote != "" || !filepath.IsAbs(s.Of) })
	}
	return false
}

// withoutHost removes information about the host from a result. called is the name by which the guest refers to the
// mount.
func (g *guests) withoutHost(called string, result any) any {
	switch r := result.(type) {
	case Status:
		mounts := []MountStatus{}
		// Drop all other mounts from the result, so that it contains only the mount of the guest.
		for _, m := range r.Mounts {
			if m.Dir == g.dir {
				m.Dir, m.PID, m.Redirects, m.SubmoduleOf, m.Remote, m.Session = "", 0, nil, "", notPath(m.Remote),
					ofGuest(m.Session)
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
	case SessionShowReply: // remove both commands, because a guest cannot run them
		r.Status, r.SessionRemote, r.Link, r.ForkCommand, r.ResumeCommand = ofGuest(r.Status), notPath(r.SessionRemote),
			notPath(r.Link), "", ""
		return r
	case SessionCompareReply:
		r.Remote = notPath(r.Remote)
		return r
	case SessionApproveReply:
		r.Approval.Repository, r.Link, r.Show = notPath(r.Approval.Repository), notPath(r.Link), notPath(r.Show)
		return r
	case SessionApprovalsReply:
		r.Repository, r.Approvals = notPath(r.Repository), slices.Clone(r.Approvals)
		for i := range r.Approvals {
			r.Approvals[i].Repository = notPath(r.Approvals[i].Repository)
		}
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

// ofGuest returns the status of a session in the form that a guest may see, without a session remote that is a path of
// the host.
func ofGuest(s SessionStatus) SessionStatus {
	s.SessionRemote = notPath(s.SessionRemote)
	return s
}

// infoOfGuest returns the description of a session in the form that a guest may see, without directories and paths of
// the host.
func infoOfGuest(s SessionInfo) SessionInfo {
	s.Dir, s.Remote, s.ParentRemote, s.SessionStatus = "", notPath(s.Remote), notPath(s.ParentRemote),
		ofGuest(s.SessionStatus)
	s.History = slices.Clone(s.History)
	for i := range s.History { // remove the directory from "mounted at DIR"
		s.History[i].Reason, _, _ = strings.Cut(s.History[i].Reason, " at /")
	}
	return s
}

// notPath returns remote, or "" if it is a path of the host.
func notPath(remote string) string {
	if filepath.IsAbs(remote) || strings.HasPrefix(remote, "file:") {
		return ""
	}
	return remote
}

// failed returns the error that is sent to a guest. called is the name by which the guest refers to the mount.
func (g *guests) failed(called string, err error) *Error {
	// Replace the mount's directory on the host, which errors contain, by the guest's name of the mount.
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

// full refuses a connection because the mount has maxGuests connections already.
func (g *guests) full(out *sender) {
	out.sendBy(message{Error: &Error{Code: ExitFailed, Kind: CodeBusy, Verb: "talk to", Object: "daemon",
		Cause: fmt.Sprintf("limit of %d connections from this mount is reached", maxGuests)}}, time.Now().Add(guestPause))
	out.conn.Close()
}

// work checks and changes a guest's request with the method enter, carries it out with the function do, and removes
// information about the host from the result with the method leave.
func (g *guests) work(a asked, do func(asked) (any, error)) (any, error) {
	called, err := g.enter(&a)
	if err != nil {
		return nil, err
	}
	result, err := do(a)
	if err != nil {
		return nil, g.failed(called, err)
	}
	return g.withoutHost(called, result), nil
}

// GuestDir returns the root of the mount that contains dir. ok is false if neither dir nor a directory above it
// contains a socket for guests. GuestDir only checks whether the socket exists, and does not connect to it.
func GuestDir(dir string) (root string, ok bool) {
	// The loop ends at the root directory, which is its own parent.
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

// DialGuest returns a Client for a program that runs inside of the mount at root and does not see the daemon's socket.
// Requests may name root or any other directory; in replies, the directory of the mount is root. DialGuest returns
// ErrNoServer if no server answers.
func DialGuest(ctx context.Context, root string) (*Client, error) {
	c := &Client{root: root}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c, conn.Close()
}

// dialGuest connects to the socket for guests in the mount at root.
func dialGuest(ctx context.Context, root string) (*net.UnixConn, error) {
	c, err := gitsocket.Dial(ctx, filepath.Join(root, ".git"), guestSocket)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("connect from inside mount %s: %w", root, ErrNoServer)
	case err != nil:
		return nil, fmt.Errorf("connect from inside mount %s: %w", root, err)
	}
	return c.(*net.UnixConn), nil
}

// named sets the directory of the mount in a reply to a guest to root. The server leaves the directory out of the
// reply, because it is a path of the host.
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
