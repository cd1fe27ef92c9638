package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// service is a program of git on the server's side.
type service string

const (
	uploadPack  service = "git-upload-pack"
	receivePack service = "git-receive-pack"
)

// path is where smart HTTP has it.
func (s service) path() string { return "/" + string(s) }

// program is how it is called: by the user's command where there is one, else by git's name with this prefix.
func (r *Remote) program(s service, prefix string) string {
	if s == uploadPack && r.opts.UploadPack != "" {
		return r.opts.UploadPack
	}
	return prefix + strings.TrimPrefix(string(s), "git-")
}

// dialLocal runs upload-pack, or receive-pack, on a repository of this machine. It is our own process and serves us alone, so it
// may do what a server's administrator has to allow to strangers: filters, sizes, and a repository of another user
// (git's safe.directory guards against repositories one stumbles into; this one was named).
func (r *Remote) dialLocal(path string, s service) dial {
	verdict := func(_ context.Context, p *process, err error) error { return localVerdict(path, s, p, err) }
	program := r.program(s, "git ")
	return func(context.Context) (duplex, error) {
		cmd := exec.Command("sh", "-c", program+` "$1"`, "sh", path)
		cmd.Env = append(r.opts.Env.forRepository(),
			"GIT_PROTOCOL=version=2", "GIT_CONFIG_COUNT=3",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=uploadpack.allowFilter", "GIT_CONFIG_VALUE_1=true",
			"GIT_CONFIG_KEY_2=transfer.advertiseObjectInfo", "GIT_CONFIG_VALUE_2=true")
		return r.startProcess(cmd, verdict)
	}
}

func (r *Remote) newLocal(path string) *lanes {
	s := r.newLanes(func(s service) dial { return r.dialLocal(path, s) })
	s.local = path
	return s
}

// isPartial says whether a repository of this machine is a partial clone, as those of sessions are.
func isPartial(ctx context.Context, path string) bool {
	for _, dir := range []string{path, filepath.Join(path, ".git")} {
		out, err := Environment(nil).git(ctx, "config", "--file", filepath.Join(dir, "config"), "--get-regexp", `^(extensions\.partialclone|remote\..*\.promisor)$`).Output()
		if err == nil && len(out) > 0 {
			return true
		}
	}
	return false
}

func localVerdict(path string, s service, p *process, err error) error {
	_, statErr := os.Stat(path)
	switch {
	case errors.Is(err, ErrNoV2), errors.Is(err, errProtocol):
		return err
	case errors.Is(statErr, fs.ErrPermission):
		return fmt.Errorf("%w%s", ErrForbidden, p.said())
	case statErr != nil || p.cmd.ProcessState.ExitCode() == 128: // git's "not a git repository" and the like
		return fmt.Errorf("%w%s", ErrNotFound, p.said())
	}
	return fmt.Errorf("%w: %s ended with %v%s", ErrUnreachable, s, p.cmd.ProcessState, p.said())
}

// dialSSH runs upload-pack, or receive-pack, on another host. The quoting is for the login shell there.
func (r *Remote) dialSSH(ep *endpoint, ssh sshProgram, s service) dial {
	host := ep.host
	if ep.user != "" {
		host = ep.user + "@" + host
	}
	program := r.program(s, "git-")
	argv := ssh.argv(append(ssh.options(ep.port, r.opts.Connect), host, program+" '"+strings.ReplaceAll(ep.path, "'", `'\''`)+"'"))
	verdict := func(ctx context.Context, p *process, err error) error {
		var said remoteError
		switch {
		case errors.Is(err, ErrNoV2), errors.Is(err, errProtocol):
			return err
		case errors.As(err, &said):
			return fmt.Errorf("%w: %w", ErrNotFound, err)
		case p.cmd.ProcessState.ExitCode() != 255: // the remote shell's status: no such command, or no such repository
			return fmt.Errorf("%w%s", ErrNotFound, p.said())
		case ssh.reaches(ctx, ep.port, host, r.opts.Connect):
			return fmt.Errorf("%w%s", ErrAuth, p.said())
		}
		return transient{error: fmt.Errorf("%w%s", ErrUnreachable, p.said())}
	}
	return func(context.Context) (duplex, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(ssh.env.forRepository(), "GIT_PROTOCOL=version=2")
		return r.startProcess(cmd, verdict)
	}
}

// dialGit connects to a git daemon.
func (r *Remote) dialGit(ep *endpoint, service service) dial {
	port := ep.port
	if port == "" {
		port = "9418"
	}
	host := ep.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if ep.port != "" {
		host += ":" + ep.port
	}
	request := fmt.Sprintf("%s %s\x00host=%s\x00\x00version=2\x00", service, ep.path, host)
	return func(ctx context.Context) (duplex, error) {
		if len(request) > pktline.MaxData {
			return nil, errors.New("path is too long")
		}
		d := net.Dialer{Timeout: r.opts.Connect, Control: r.sendAgainSoon}
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(ep.host, port))
		if err != nil {
			return nil, unreachable(err)
		}
		s := &socket{Conn: c, stats: &r.stats}
		if _, err := s.Write(pktline.Append(nil, request)); err != nil {
			c.Close()
			return nil, fault(err)
		}
		return s, nil
	}
}

// sendAgainSoon makes the kernel send what was lost again each second, and not after pauses that double up to two minutes:
// so a connection goes on with the network, and one that is being opened is opened. The kernel gives up when a stall would
// end the exchange. Before Linux 6.15 there is no such option (TCP_RTO_MAX_MS of include/uapi/linux/tcp.h).
func (r *Remote) sendAgainSoon(_, _ string, c syscall.RawConn) error {
	const rtoMax, most = 44, 1000 // milliseconds
	return c.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, rtoMax, most) == nil {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(r.opts.Stall.Milliseconds()))
		}
	})
}

// socket is a duplex over TCP.
type socket struct {
	net.Conn
	stats *counters
	spare bool // opened ahead of need
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.stats.in.Add(int64(n))
	return n, err
}

func (s *socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.stats.out.Add(int64(n))
	return n, err
}

func (s *socket) abort() { s.Close() }

// explain: a git daemon has one answer to a repository it does not have or does not serve, and then hangs up.
func (s *socket) explain(_ context.Context, err error) error {
	var said remoteError
	if errors.As(err, &said) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return lost(err)
}

// unreachable sorts a failed dial: a name that does not exist will not exist in a second either.
func unreachable(err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault(err)
}
