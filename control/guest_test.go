package control

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitsocket"
)

// hostOf is a daemon with two mounts, one of which has guests: clients inside of the mount.
type hostOf struct {
	*fake
	unasked
	asked chan any
}

// unasked implements the operations that no test requests.
type unasked interface{ Sessions }

func (h hostOf) Status(context.Context) (Status, error) {
	return Status{Mounts: []MountStatus{{Dir: "/srv/other", PID: 1},
		{Dir: "/srv/app", PID: 2, Session: SessionStatus{Name: "s", SessionRemote: "/var/lib/s.git"}}},
		Daemon: DaemonStatus{PID: 7}}, nil
}

func (h hostOf) SessionLog(_ context.Context, r SessionLogRequest) (SessionLogReply, error) {
	h.asked <- r
	return SessionLogReply{Session: "s"}, nil
}

func (h hostOf) Restore(_ context.Context, r RestoreRequest, _ func(Progress)) (RestoreReply, error) {
	h.asked <- r
	return RestoreReply{}, &Error{Code: ExitNotMounted, Kind: CodeNotFound, Verb: "restore", Object: r.Dir,
		Cause: "no checkpoint in " + r.Dir + "/x"}
}

// newGuest serves the guests of a mount, and returns a client inside of the mount, and the root of the mount as the
// client sees it.
func newGuest(t *testing.T) (c *Client, root string, asked chan any) {
	t.Helper()
	root = t.TempDir()
	gitDir := filepath.Join(root, ".git")
	if err := os.MkdirAll(filepath.Join(root, "sub", "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(gitDir, 0o755); err != nil {
		t.Fatal(err)
	}
	asked = make(chan any, 10)
	g, err := ServeGuests(gitDir, gitsocket.Options{}, "/srv/app", hostOf{fake: newFake(), asked: asked}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	found, ok := GuestDir(filepath.Join(root, "sub", "dir"))
	if !ok || found != root {
		t.Fatalf("mount around a directory in it: got %q, %v, want %q", found, ok, root)
	}
	if c, err = DialGuest(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	return c, root, asked
}

func TestGuestSeesItsOwnSessionAlone(t *testing.T) {
	c, root, asked := newGuest(t)
	s, err := c.Status(t.Context())
	if err != nil || len(s.Mounts) != 1 || s.Mounts[0].Dir != root || s.Mounts[0].PID != 0 ||
		s.Mounts[0].Session.SessionRemote != "" || s.Daemon.PID != 0 {
		t.Errorf("status: got %+v, %v, want the guest's mount without anything of the host", s, err)
	}
	if _, err := c.SessionLog(t.Context(), SessionLogRequest{Of: "another-session"}); err != nil {
		t.Errorf("log by a guest: %v", err)
	}
	if r := await(t, asked); r != (SessionLogRequest{Of: "/srv/app"}) {
		t.Errorf("log of another session: the daemon was asked for %+v, want the guest's own", r)
	}
	_, err = c.Restore(t.Context(), RestoreRequest{Dir: root, ID: "x"}, nil)
	if r := await(t, asked).(RestoreRequest); r.Dir != "/srv/app" {
		t.Errorf("restore: the daemon was asked for %q, want /srv/app", r.Dir)
	}
	if e := AsError(err); e.ErrorCode() != CodeNotFound || strings.Contains(e.Error(), "/srv/app") ||
		!strings.Contains(e.Cause, root+"/x") {
		t.Errorf("restore that fails: got %v, want the guest's name of the mount", err)
	}
	for name, refused := range map[string]func() error{
		"mount":    func() error { _, err := c.Mount(t.Context(), mountRequest(root), nil); return err },
		"unmount":  func() error { _, err := c.Unmount(t.Context(), UnmountRequest{Dir: root}); return err },
		"switch":   func() error { _, err := c.Switch(t.Context(), SwitchRequest{Dir: root, Ref: "v1"}, nil); return err },
		"trace":    func() error { return c.Trace(t.Context(), TraceRequest{Dir: root}, nil) },
		"upgrade":  func() error { return c.Upgrade(t.Context(), UpgradeRequest{Executable: "/bin/sh"}) },
		"shutdown": func() error { return c.Shutdown(t.Context()) },
		"fork": func() error {
			_, err := c.Fork(t.Context(), ForkRequest{Of: "s", Mount: mountRequest(root)}, nil)
			return err
		},
		"session-gc": func() error { _, err := c.SessionGC(t.Context(), SessionGCRequest{Of: "s"}, nil); return err },
		"session-set": func() error {
			_, err := c.SessionSet(t.Context(), SessionSetRequest{Of: "s", State: "closed"})
			return err
		},
		"pin-and-set": func() error {
			_, err := c.SessionSet(t.Context(), SessionSetRequest{Of: "s", State: "closed", Pin: "p"})
			return err
		},
		"grant": func() error {
			_, err := c.SessionApprove(t.Context(), SessionApproveRequest{Of: "s", Op: ApproveGrant, Request: "01"})
			return err
		},
		"request-elsewhere": func() error {
			_, err := c.SessionApprove(t.Context(), SessionApproveRequest{Of: "s", Op: ApproveRequest, Action: ApprovePromote,
				To: "/other.git"})
			return err
		},
		"approvals-elsewhere": func() error {
			_, err := c.SessionApprovals(t.Context(), SessionApprovalsRequest{Of: "s", SessionRemote: "https://h/r.git"})
			return err
		},
		"policy": func() error { _, err := c.SessionPolicy(t.Context(), SessionPolicyRequest{Of: "s"}); return err },
	} {
		if err := refused(); AsError(err) == nil || AsError(err).ErrorCode() != CodePermission {
			t.Errorf("%s by a guest: got %v, want it refused with code %q", name, err, CodePermission)
		}
	}
	select {
	case r := <-asked:
		t.Errorf("the daemon was asked for %+v", r)
	default:
	}
}

// An untrusted client cannot use up the memory or the descriptors of the daemon.
func TestGuestsAreLimited(t *testing.T) {
	c, root, _ := newGuest(t)
	dial := func() net.Conn {
		t.Helper()
		conn, err := gitsocket.Dial(t.Context(), filepath.Join(root, ".git"), guestSocket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	// further bytes are not read
	fmt.Fprintf(dial(), `{"version":6,"op":"session-log","args":{"of":"%s`, strings.Repeat("x", maxRequest))
	var idle []net.Conn
	for range maxGuests {
		idle = append(idle, dial())
	}
	for { // earlier connections are accepted in order
		if _, err := c.Status(t.Context()); err != nil {
			if AsError(err).ErrorCode() != CodeBusy {
				t.Errorf("one connection too many: got %v, want code %q", err, CodeBusy)
			}
			break
		}
	}
	for _, conn := range idle {
		conn.Close()
	}
	for { // the closed connections end asynchronously
		_, err := c.Status(t.Context())
		if err == nil {
			break
		}
		if AsError(err).ErrorCode() != CodeBusy {
			t.Fatalf("status when connections are free again: %v", err)
		}
	}
}
